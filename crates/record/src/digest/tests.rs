//! Tests of digests: what they keep and omit, and that no literal leaks.

use proptest::prelude::*;

use super::*;

const MYSQL: Dialect = Dialect::Mysql { backslash: true };
const POSTGRES: Dialect = Dialect::Postgres { backslash: false };

fn digest_text(sql: &str, dialect: Dialect) -> String {
    digest(sql.as_bytes(), dialect, &Salt::default()).text
}

#[test]
fn numbers_in_names_that_clients_number_are_masked() {
    for (dialect, sql, expected) in [
        (
            POSTGRES,
            "DEALLOCATE pdo_stmt_0000001c",
            "DEALLOCATE pdo_stmt_?",
        ),
        (
            POSTGRES,
            "FETCH FORWARD 100 FROM \"_django_curs_1398_sync_2\"",
            "FETCH FORWARD ? FROM \"_django_curs_?_sync_?\"",
        ),
        (
            POSTGRES,
            "DECLARE cursor12 CURSOR FOR SELECT a1 FROM t2",
            "DECLARE cursor? CURSOR FOR SELECT a1 FROM t2",
        ),
        (
            MYSQL,
            "ROLLBACK TO SAVEPOINT sp_7",
            "ROLLBACK TO SAVEPOINT sp_?",
        ),
    ] {
        assert_eq!(digest_text(sql, dialect), expected);
    }
}

#[test]
fn literals_become_question_marks() {
    for (dialect, sql, expected) in [
        (
            MYSQL,
            "SELECT c  FROM t WHERE id=5",
            "SELECT c FROM t WHERE id = ?",
        ),
        (
            MYSQL,
            "select 'a''b\\'c', \"d\", -1.5e-3, 0xAF, x'00', _utf8'z' from `t`.u",
            "select ?, ?, ?, ?, ?, ? from `t`.u",
        ),
        (
            MYSQL,
            "SELECT * FROM t WHERE id IN (1, 2,3) AND x IN (SELECT 1)",
            "SELECT * FROM t WHERE id IN (...) AND x IN (SELECT ?)",
        ),
        (
            MYSQL,
            "INSERT INTO t (a,b) VALUES (1,'x'),(2,'y'),(3,'z')",
            "INSERT INTO t(a, b) VALUES (?, ?), ...",
        ),
        (
            MYSQL,
            "SELECT count(*), @@x, @y /* secret */ -- secret\n FROM t # secret",
            "SELECT count(*), @@x, @y FROM t",
        ),
        (MYSQL, "SELECT 1 /*!99999 , secret */", "SELECT ?"),
        (MYSQL, "SELECT 1 /*M!999999 , secret */, 2", "SELECT ?, ?"),
        (MYSQL, "SELECT 'unterminated secret", "SELECT ?"),
        (
            POSTGRES,
            "SELECT \"Name\" FROM t WHERE a = $1 AND b = $$it's$$ AND c = $t$x$$y$t$",
            "SELECT \"Name\" FROM t WHERE a = ? AND b = ? AND c = ?",
        ),
        (
            POSTGRES,
            "SELECT E'it\\'s' || U&'d' || 'x', 1::int",
            "SELECT ? || ? || ?, ? :: int",
        ),
        (POSTGRES, "SELECT 'a\\' secret", "SELECT ?"),
        (
            POSTGRES,
            "SELECT 1 /* a /* b */ secret */ + 2",
            "SELECT ? + ?",
        ),
    ] {
        assert_eq!(digest_text(sql, dialect), expected, "{sql}");
    }
}

// [app-18]
#[test]
fn executed_comments_are_replaced_by_their_text() {
    for (sql, expected) in [
        ("/*!40101 SET NAMES utf8 */", "SET NAMES utf8"),
        ("SELECT /*!40000 a */ FROM t", "SELECT a FROM t"),
        ("SELECT a/*!50000>*/b", "SELECT a > b"),
        ("SELECT /*M! a, /* secret */ b */ c", "SELECT a, b c"),
    ] {
        assert_eq!(digest_text(sql, MYSQL), expected, "{sql}");
    }
}

#[test]
fn a_truncated_statement_has_the_digest_of_the_complete_one() {
    for statement in [
        "SELECT LENGTH('secret')",
        "INSERT INTO t(a, b) VALUES (1, 'x'), (2, 'y'), (3, 'z')",
        "SELECT a FROM t WHERE id IN (1, 2, 3, 4)",
    ] {
        let length = statement.len();
        for cut in [length - 1, length - 2, length - 4] {
            assert_eq!(
                digest_text(&statement[..cut], MYSQL),
                digest_text(statement, MYSQL),
                "{cut}"
            );
        }
    }
}

#[test]
fn unquoted_values_of_settings_are_literals() {
    for (dialect, sql, expected) in [
        (
            MYSQL,
            "SET SESSION a = secret, @b := secret2",
            "SET SESSION a = ?, @b := ?",
        ),
        (
            POSTGRES,
            "SET LOCAL a.b TO secret, \"Secret\"",
            "SET LOCAL a.b TO ?, ?",
        ),
        (
            POSTGRES,
            "ALTER ROLE web SET a = secret",
            "ALTER ROLE web SET a = ?",
        ),
        (
            POSTGRES,
            "begin; set local a = secret; set time zone secret; commit",
            "begin; set local a = ?; set time zone ?; commit",
        ),
        (
            MYSQL,
            "begin not atomic set @z = secret; end",
            "begin not atomic set @z = ?; end",
        ),
        (
            POSTGRES,
            "ALTER TABLE a RENAME TO b",
            "ALTER TABLE a RENAME TO b",
        ),
        (
            MYSQL,
            "UPDATE t SET a = b, c = d",
            "UPDATE t SET a = b, c = d",
        ),
    ] {
        assert_eq!(digest_text(sql, dialect), expected, "{sql}");
    }
}

#[test]
fn the_second_byte_of_a_character_is_not_a_backslash() {
    // One character in sjis, and one in gbk.
    for sql in [
        &b"select '\x83\x5c', 'secret'"[..],
        b"select '\xd5\x5c', 'secret'",
    ] {
        for backslash in [true, false] {
            let result = digest(sql, Dialect::Mysql { backslash }, &Salt::default());
            assert_eq!(result.text, "select ?");
        }
    }
}

#[test]
fn commands_come_from_a_fixed_list() {
    for (sql, expected) in [
        ("  (SELECT 1)", "select"),
        ("START TRANSACTION", "begin"),
        ("secret", "other"),
        ("", "empty query"),
        (" /* secret */ -- secret", "empty query"),
    ] {
        assert_eq!(
            digest(sql.as_bytes(), MYSQL, &Salt::default()).command,
            expected
        );
    }
}

#[test]
fn keys_are_equal_only_for_equal_literals_and_salts() {
    let salt = Salt::default();
    let keys = |sql: &str| digest(sql.as_bytes(), MYSQL, &salt).keys;
    assert_eq!(keys("SELECT 1, 'a'"), keys("select  1,'a'"));
    assert_ne!(keys("SELECT 1, 'a'"), keys("SELECT 1, 'b'"));
    assert_ne!(keys("SELECT '1', '23'"), keys("SELECT '12', '3'"));
    assert_ne!(
        keys("SELECT 1"),
        digest(b"SELECT 1", MYSQL, &Salt::default()).keys
    );
}

proptest! {
    #[test]
    fn digests_contain_no_quoted_literal(
        prefix in "[ a-z=(,]{0,12}", secret in "[a-zA-Z0-9 '\\\\\"`$;]{0,30}", suffix in "[ a-z=),0-9]{0,12}", quoting in 0..4,
    ) {
        let secret = format!("Zq9{secret}Zq9");
        let (quoted, dialect) = match quoting {
            0 => (format!("'{}'", secret.replace('\\', "\\\\").replace('\'', "''")), MYSQL),
            1 => (format!("\"{}\"", secret.replace('\\', "\\\\").replace('"', "\\\"")), MYSQL),
            2 => (format!("'{}'", secret.replace('\'', "''")), POSTGRES),
            _ => (format!("E'{}'", secret.replace('\\', "\\\\").replace('\'', "\\'")), POSTGRES),
        };
        let result = digest_text(&format!("SELECT {prefix} {quoted} {suffix}"), dialect);
        prop_assert!(!result.contains("Zq9"), "{result}");
    }

    /// Every opened bracket is closed.
    #[test]
    fn brackets_and_executed_comments_are_closed(words in prop::collection::vec(0..9_usize, 0..12)) {
        const WORDS: [&str; 9] = ["(", "1", ",", "a", "/*!", "/*!50000", "VALUES", "IN", "+"];
        let parts: Vec<&str> = words.iter().map(|&word| WORDS[word]).collect();
        let ends = "*/".repeat(parts.iter().filter(|word| word.starts_with("/*")).count());
        let result = digest_text(&format!("{} {ends}", parts.join(" ")), MYSQL);
        prop_assert_eq!(result.matches('(').count(), result.matches(')').count(), "{}", result);
        prop_assert!(!result.contains("*/"), "{}", result);
    }

    #[test]
    fn any_bytes_have_a_bounded_digest(sql in prop::collection::vec(any::<u8>(), 0..300), is_mysql in any::<bool>(), backslash in any::<bool>()) {
        let dialect = if is_mysql { Dialect::Mysql { backslash } } else { Dialect::Postgres { backslash } };
        let result = digest(&sql, dialect, &Salt::default());
        prop_assert!(result.text.len() <= 3 * MAX_DIGEST_BYTES + 8);
    }
}
