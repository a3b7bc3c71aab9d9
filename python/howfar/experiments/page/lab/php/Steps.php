<?php

declare(strict_types=1);

namespace Howfar;

/** Runs the steps of a script, in order and `rounds` times. */
final class Steps
{
    /** About 25 µs: a page computes longer than asked by no more than that. */
    private const HASHES_AT_ONCE = 400;

    private readonly Values $values;
    /** @var array<string, array<string, mixed>> by name */
    private readonly array $statements;
    /** @var array<string, \PDOStatement> by name */
    private array $prepared = [];
    private int $computeNs = 0;
    private int $computedNs = 0;

    public function __construct(
        private readonly array $script,
        private readonly Services $services,
        private readonly Tally $tally,
    ) {
        $tally->begin('rows', 'hits', 'misses', 'app_cpu_ns');
        $this->values = new Values();
        $this->statements = array_column($script['statements'], null, 'name');
    }

    public function run(): void
    {
        for ($round = 0; $round < $this->script['rounds']; $round++) {
            foreach ($this->script['steps'] as $step) {
                match ($step['kind']) {
                    'query' => $this->query($step['statement'], $step['repeat']),
                    'get' => $this->get($step['store'], $step['keys_each'], $step['repeat']),
                    'cpu' => $this->compute($step['cpu_ns']),
                };
            }
        }
        $this->tally->add('app_cpu_ns', $this->computedNs);
    }

    private function query(string $name, int $repeat): void
    {
        // With emulated prepares this sends nothing: PDO quotes the values into the text, and each execution is one turn.
        $prepared = $this->prepared[$name] ??= $this->services->database()->prepare($this->statements[$name]['sql']);
        for ($i = 0; $i < $repeat; $i++) {
            foreach ($this->values->ofStatement($this->statements[$name]) as $index => $value) {
                $prepared->bindValue($index + 1, $value, is_int($value) ? \PDO::PARAM_INT : \PDO::PARAM_STR);
            }
            $began = hrtime(true);
            $prepared->execute();
            $rows = $prepared->columnCount() > 0 ? $prepared->fetchAll(\PDO::FETCH_ASSOC) : null;
            $this->tally->turn($this->services->sql, $began);
            if ($rows === []) {
                throw new \RuntimeException("statement {$name} found no row");
            }
            $this->tally->add('rows', count($rows ?? []));
        }
    }

    private function get(string $store, int $keysEach, int $repeat): void
    {
        $read = $store === 'redis' ? $this->fromRedis(...) : $this->fromMemcached(...);
        for ($i = 0; $i < $repeat; $i++) {
            $hits = $read($this->values->keys($this->script["{$store}_keys"], $keysEach));
            $this->tally->add('hits', $hits);
            $this->tally->add('misses', $keysEach - $hits);
        }
    }

    /** @param list<string> $keys */
    private function fromRedis(array $keys): int
    {
        $redis = $this->services->redis();
        $began = hrtime(true);
        $found = count($keys) === 1 ? [$redis->get($keys[0])] : $redis->mGet($keys);
        $this->tally->turn('redis', $began);

        return count(array_filter($found, is_string(...)));
    }

    /** @param list<string> $keys */
    private function fromMemcached(array $keys): int
    {
        $memcached = $this->services->memcached();
        $began = hrtime(true);
        $found = count($keys) === 1 ? $memcached->get($keys[0]) : $memcached->getMulti($keys);
        $this->tally->turn('memcached', $began);
        if (!in_array($memcached->getResultCode(), [\Memcached::RES_SUCCESS, \Memcached::RES_NOTFOUND], true)) {
            throw new \RuntimeException('Memcached: ' . $memcached->getResultMessage());
        }
        if (is_array($found)) {
            // A key that was drawn twice is answered once by this driver, and was found twice.
            return count(array_filter($keys, static fn (string $key): bool => isset($found[$key])));
        }

        return $found === false ? 0 : 1;
    }

    /** Until this process has used so much CPU. What one step took too long, the next one takes less. */
    private function compute(int $cpuNs): void
    {
        $this->computeNs += $cpuNs;
        $began = $this->tally->cpuNs();
        $before = $this->computedNs;
        $hash = 'howfar';
        while ($this->computedNs < $this->computeNs) {
            for ($i = 0; $i < self::HASHES_AT_ONCE; $i++) {
                $hash = hash('xxh3', $hash);
            }
            $this->computedNs = $before + $this->tally->cpuNs() - $began;
        }
    }
}
