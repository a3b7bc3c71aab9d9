<?php
// Client programs of `benches/drivers.py` in PHP, by name: php clients.php NAME. What they do is said in python_clients.py.

const QUERY = 'SELECT c FROM sbtest1 WHERE id = ?';
const UPDATE = 'UPDATE sbtest1 SET k = k + 1 WHERE id = 1';
const KEYS = [1, 2, 3];
const PREPARED_KEYS = [11, 12];

function step(string $name, callable $act): mixed
{
    $begun = hrtime(true);
    $result = $act();
    $text = "page 0 $begun " . hrtime(true) . " mark $name";
    fwrite(stream_socket_client('udp://' . getenv('HOWFAR_MARKS')), $text);
    return $result;
}

function pdo(string $kind, bool $emulate): void
{
    $dsn = sprintf('%s:host=%s;port=%s;dbname=%s', $kind, getenv('DB_HOST'), getenv('DB_PORT'), getenv('DB_NAME'));
    $options = [PDO::ATTR_EMULATE_PREPARES => $emulate, PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION];
    $line = step('connect', fn() => new PDO($dsn, getenv('DB_USER'), getenv('DB_PASSWORD'), $options));
    step('queries', function () use ($line) {
        foreach (KEYS as $key) {
            $statement = $line->prepare(QUERY);
            $statement->execute([$key]);
            $statement->fetchAll();
        }
    });
    step('prepared', function () use ($line) {
        $statement = $line->prepare(QUERY);
        foreach (PREPARED_KEYS as $key) {
            $statement->execute([$key]);
            $statement->fetchAll();
        }
    });
    step('transaction', function () use ($line) {
        $line->beginTransaction();
        $line->exec(UPDATE);
        $line->commit();
    });
}

function mysqli(): void
{
    $line = step('connect', fn() => new mysqli(
        getenv('DB_HOST'), getenv('DB_USER'), getenv('DB_PASSWORD'), getenv('DB_NAME'), (int) getenv('DB_PORT')));
    step('queries', function () use ($line) {
        foreach (KEYS as $key) {
            $line->query(str_replace('?', (string) $key, QUERY))->fetch_all();
        }
    });
    step('prepared', function () use ($line) {
        $statement = $line->prepare(QUERY);
        foreach (PREPARED_KEYS as $key) {
            $statement->execute([$key]);
            $statement->get_result()->fetch_all();
        }
    });
    step('transaction', function () use ($line) {
        $line->begin_transaction();
        $line->query(UPDATE);
        $line->commit();
    });
}

echo 'PHP ', PHP_VERSION, "\n";
match ($argv[1]) {
    'mysql-native' => pdo('mysql', false),
    'mysql-emulated' => pdo('mysql', true),
    'pgsql-native' => pdo('pgsql', false),
    'pgsql-emulated' => pdo('pgsql', true),
    'mysqli' => mysqli(),
};
