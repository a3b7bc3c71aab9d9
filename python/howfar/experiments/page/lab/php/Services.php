<?php

declare(strict_types=1);

namespace Howfar;

/**
 * A page's connections, each opened by the first step that needs it: kept by this process for its next pages (`persistent`), or
 * closed at the page's end (`per_page`).
 *
 * Of a connection that was kept, PDO's MySQL and phpredis first ask whether it still lives: one turn each, which no script names. It is
 * told as a turn and in `mysql_checks`, `redis_checks`. PDO's PostgreSQL looks at its socket, which takes none.
 */
final class Services
{
    public const NAMES = ['mysql', 'postgresql', 'redis', 'memcached'];
    private const PATIENCE_S = 30;
    private const NAME_OF_KEPT = 'howfar';

    /** Where statements go. */
    public readonly string $sql;
    private ?\PDO $database = null;
    private ?\Redis $redis = null;
    private ?\Memcached $memcached = null;
    private readonly bool $persistent;

    public function __construct(private readonly array $script, private readonly Tally $tally)
    {
        $this->persistent = $script['connect'] === 'persistent';
        $this->sql = $script['postgresql'] === null ? 'mysql' : 'postgresql';
        $used = array_filter(self::NAMES, static fn (string $name): bool => $script[$name] !== null);
        foreach ($used as $name) {
            $tally->begin("{$name}_turns", "{$name}_ns", "{$name}_connects", "{$name}_connect_ns", "{$name}_checks");
        }
    }

    public function database(): \PDO
    {
        $open = $this->sql === 'mysql' ? $this->openMysql(...) : $this->openPostgresql(...);

        return $this->database ??= $this->opened($this->sql, fn (): \PDO => $open($this->script[$this->sql]));
    }

    public function redis(): \Redis
    {
        return $this->redis ??= $this->opened('redis', fn (): \Redis => $this->openRedis($this->script['redis']));
    }

    public function memcached(): \Memcached
    {
        return $this->memcached ??= $this->openMemcached($this->script['memcached']['target']);
    }

    /** The page is over. */
    public function leave(): void
    {
        if (!$this->persistent) {
            $this->redis?->close();
            $this->memcached?->quit();
        }
        $this->database = $this->redis = $this->memcached = null;
    }

    /**
     * @template Connection
     * @param callable(): Connection $open
     * @return Connection
     */
    private function opened(string $service, callable $open): mixed
    {
        $kept = $this->persistent && !self::isFirstHere($service);
        $began = hrtime(true);
        $connection = $open();
        if ($kept && $service === 'postgresql') {
            return $connection;
        }
        if ($kept) {
            $this->tally->turn($service, $began);
            $this->tally->add("{$service}_checks", 1);
        } else {
            $this->tally->connect($service, $began);
        }

        return $connection;
    }

    /**
     * Whether this process has not asked this before; only one in which a page opens a persistent connection asks. Neither PDO nor
     * phpredis says whether a connection is new, and nothing else of a page outlives it but a persistent object.
     */
    private static function isFirstHere(string $service): bool
    {
        return (new \Memcached(self::NAME_OF_KEPT . ".first.{$service}"))->isPristine();
    }

    private function openMysql(array $service): \PDO
    {
        $target = $service['target'];
        // By a host's name "localhost" PDO would take a socket of its own choice.
        $where = $target['kind'] === 'unix'
            ? "unix_socket={$target['path']}"
            : "host={$target['host']};port={$target['port']}";
        $options = [
            \PDO::ATTR_ERRMODE => \PDO::ERRMODE_EXCEPTION,
            \PDO::ATTR_EMULATE_PREPARES => true,
            \PDO::ATTR_PERSISTENT => $this->persistent,
            \PDO::ATTR_TIMEOUT => self::PATIENCE_S,
            \PDO::MYSQL_ATTR_MULTI_STATEMENTS => false,
        ];
        $tls = $service['tls'] === null ? [] : [
            \PDO::MYSQL_ATTR_SSL_CA => $service['tls']['ca_file'],
            \PDO::MYSQL_ATTR_SSL_VERIFY_SERVER_CERT => $service['tls']['verify'] === 'full',
        ];

        return new \PDO(
            "mysql:{$where};dbname={$service['database']};charset=utf8mb4",
            $service['user'],
            $service['password'],
            $options + $tls,
        );
    }

    private function openPostgresql(array $service): \PDO
    {
        ['target' => $target, 'tls' => $tls] = $service;
        // By a directory libpq takes the socket in there. It would ask for encryption first where it is not told otherwise.
        $words = [
            'host' => $target['kind'] === 'unix' ? dirname($target['path']) : $target['host'],
            'port' => $target['kind'] === 'unix' ? substr(strrchr($target['path'], '.'), 1) : $target['port'],
            'dbname' => $service['database'],
            'gssencmode' => 'disable',
        ] + ($tls === null ? ['sslmode' => 'disable'] : [
            'sslmode' => ['none' => 'require', 'ca' => 'verify-ca', 'full' => 'verify-full'][$tls['verify']],
            'sslrootcert' => $tls['ca_file'],
        ]);

        return new \PDO(
            'pgsql:' . implode(';', array_map(static fn ($name, $value): string => "{$name}='{$value}'", array_keys($words), $words)),
            $service['user'],
            $service['password'],
            [
                \PDO::ATTR_ERRMODE => \PDO::ERRMODE_EXCEPTION,
                \PDO::ATTR_EMULATE_PREPARES => true,
                \PDO::ATTR_PERSISTENT => $this->persistent,
                \PDO::ATTR_TIMEOUT => self::PATIENCE_S,
            ],
        );
    }

    private function openRedis(array $service): \Redis
    {
        ['target' => $target, 'tls' => $tls] = $service;
        $where = $target['kind'] === 'unix' ? $target['path'] : ($tls === null ? '' : 'tls://') . $target['host'];
        $context = $tls === null ? [] : ['stream' => [
            'cafile' => $tls['ca_file'],
            'peer_name' => $tls['server_name'],
            'verify_peer' => $tls['verify'] !== 'none',
            'verify_peer_name' => $tls['verify'] === 'full',
        ]];
        $redis = new \Redis();
        $arguments = [$where, $target['port'] ?? 0, self::PATIENCE_S, $this->persistent ? self::NAME_OF_KEPT : null, 0, self::PATIENCE_S, $context];
        $this->persistent ? $redis->pconnect(...$arguments) : $redis->connect(...$arguments);
        if ($service['password'] !== '') {
            $redis->auth($service['user'] === '' ? $service['password'] : [$service['user'], $service['password']]);
        }
        if ((int) $service['database'] !== 0) {
            $redis->select((int) $service['database']);
        }

        return $redis;
    }

    private function openMemcached(array $target): \Memcached
    {
        $memcached = new \Memcached($this->persistent ? self::NAME_OF_KEPT : null);
        if (!$memcached->isPristine()) {
            return $memcached;
        }
        $memcached->setOptions([
            \Memcached::OPT_BINARY_PROTOCOL => false,
            \Memcached::OPT_TCP_NODELAY => true,
            \Memcached::OPT_CONNECT_TIMEOUT => self::PATIENCE_S * 1_000,
            \Memcached::OPT_POLL_TIMEOUT => self::PATIENCE_S * 1_000,
        ]);
        $target['kind'] === 'unix'
            ? $memcached->addServer($target['path'], 0)
            : $memcached->addServer($target['host'], $target['port']);
        $began = hrtime(true);
        // This driver connects with its first command. Asked for a property of the connection it connects now, without a turn.
        $memcached->getOption(\Memcached::OPT_SOCKET_SEND_SIZE);
        $this->tally->connect('memcached', $began);

        return $memcached;
    }
}
