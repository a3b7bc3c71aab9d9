// Client programs of `benches/drivers.py` in Go, by name: clients NAME. What they do is said in python_clients.py.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"unsafe"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	_ "github.com/lib/pq"
)

const (
	query    = "SELECT c FROM sbtest1 WHERE id = ?"
	numbered = "SELECT c FROM sbtest1 WHERE id = $1"
	update   = "UPDATE sbtest1 SET k = k + 1 WHERE id = 1"
)

var (
	keys         = []int{1, 2, 3}
	preparedKeys = []int{11, 12}
)

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The kernel's monotonic clock, which Go's own time package does not show.
func now() int64 {
	var at syscall.Timespec
	const monotonic = 1
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&at)), 0)
	return at.Nano()
}

func step(name string, act func()) {
	begun := now()
	act()
	line := must(net.Dial("udp", os.Getenv("HOWFAR_MARKS")))
	defer line.Close()
	fmt.Fprintf(line, "page 0 %d %d mark %s", begun, now(), name)
}

// A pool opens a connection when it is first needed: here, at once, and one only.
func connected(driver, dsn string) *sql.Conn {
	return must(must(sql.Open(driver, dsn)).Conn(context.Background()))
}

func ask(text string, run func(key int) (*sql.Rows, error), keys []int) {
	for _, key := range keys {
		rows := must(run(key))
		for rows.Next() {
		}
		check(rows.Close())
	}
}

func throughDatabaseSQL(driver, dsn, text string) {
	ctx := context.Background()
	var line *sql.Conn
	step("connect", func() { line = connected(driver, dsn) })
	step("queries", func() {
		ask(text, func(key int) (*sql.Rows, error) { return line.QueryContext(ctx, text, key) }, keys)
	})
	step("prepared", func() {
		statement := must(line.PrepareContext(ctx, text))
		ask(text, func(key int) (*sql.Rows, error) { return statement.Query(key) }, preparedKeys)
		check(statement.Close())
	})
	step("transaction", func() {
		transaction := must(line.BeginTx(ctx, nil))
		must(transaction.Exec(update))
		check(transaction.Commit())
	})
	check(line.Close())
}

func throughPgx(dsn string) {
	ctx := context.Background()
	var line *pgx.Conn
	step("connect", func() { line = must(pgx.Connect(ctx, dsn)) })
	run := func(text string, keys []int) {
		for _, key := range keys {
			var found string
			check(line.QueryRow(ctx, text, key).Scan(&found))
		}
	}
	step("queries", func() { run(numbered, keys) })
	step("prepared", func() {
		must(line.Prepare(ctx, "prepared", strings.Replace(numbered, "sbtest1", "sbtest1 AS prepared", 1)))
		run("prepared", preparedKeys)
	})
	step("transaction", func() {
		transaction := must(line.Begin(ctx))
		must(transaction.Exec(ctx, update))
		check(transaction.Commit(ctx))
	})
	step("rows", func() {
		batch := &pgx.Batch{}
		for _, key := range keys {
			batch.Queue("SELECT k FROM sbtest1 WHERE id = $1", key)
		}
		check(line.SendBatch(ctx, batch).Close())
	})
	check(line.Close(ctx))
}

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, one := range info.Deps {
		if one.Path == module {
			return strings.TrimPrefix(one.Version, "v")
		}
	}
	return "?"
}

func main() {
	login := os.Getenv("DB_USER") + ":" + os.Getenv("DB_PASSWORD")
	address := os.Getenv("DB_HOST") + ":" + os.Getenv("DB_PORT")
	mysql := fmt.Sprintf("%s@tcp(%s)/%s", login, address, os.Getenv("DB_NAME"))
	postgres := fmt.Sprintf("postgres://%s@%s/%s?sslmode=", login, address, os.Getenv("DB_NAME"))
	programs := map[string]struct {
		module string
		run    func()
	}{
		"mysql":             {"github.com/go-sql-driver/mysql", func() { throughDatabaseSQL("mysql", mysql, query) }},
		"mysql-interpolate": {"github.com/go-sql-driver/mysql", func() { throughDatabaseSQL("mysql", mysql+"?interpolateParams=true", query) }},
		"pq":                {"github.com/lib/pq", func() { throughDatabaseSQL("postgres", postgres+"disable", numbered) }},
		"pgx":               {"github.com/jackc/pgx/v5", func() { throughPgx(postgres + "prefer") }},
	}
	program := programs[os.Args[1]]
	fmt.Println(version(program.module))
	program.run()
}
