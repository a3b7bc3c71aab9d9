<?php

declare(strict_types=1);

namespace Howfar;

/** What a page tells of itself: sums by name, its wall time, and the CPU time of this process since the page began. */
final class Tally
{
    /** @var array<string, int> */
    private array $sums = [];
    private readonly int $beganNs;
    private readonly int $cpuBeganNs;

    public function __construct()
    {
        $this->beganNs = hrtime(true);
        $this->cpuBeganNs = self::processCpuNs();
    }

    /** These are told even if nothing is added to them. */
    public function begin(string ...$names): void
    {
        $this->sums += array_fill_keys($names, 0);
    }

    public function add(string $name, int $amount): void
    {
        $this->sums[$name] += $amount;
    }

    /** A turn to `$service` that began when hrtime was `$beganNs` and has just ended. */
    public function turn(string $service, int $beganNs): void
    {
        $this->add("{$service}_ns", hrtime(true) - $beganNs);
        $this->add("{$service}_turns", 1);
    }

    /** As `turn`: a connection that was opened, with all that its login took. */
    public function connect(string $service, int $beganNs): void
    {
        $this->add("{$service}_connect_ns", hrtime(true) - $beganNs);
        $this->add("{$service}_connects", 1);
    }

    public function cpuNs(): int
    {
        return self::processCpuNs() - $this->cpuBeganNs;
    }

    /** `name=integer,…`, as it stands now. */
    public function header(): string
    {
        $told = ['cpu_ns' => $this->cpuNs(), 'wall_ns' => hrtime(true) - $this->beganNs] + $this->sums;

        return http_build_query($told, arg_separator: ',');
    }

    /** User and system: a child of PHP-FPM has one thread and answers one page at a time. */
    private static function processCpuNs(): int
    {
        $used = getrusage();
        $seconds = $used['ru_utime.tv_sec'] + $used['ru_stime.tv_sec'];
        $microseconds = $used['ru_utime.tv_usec'] + $used['ru_stime.tv_usec'];

        return ($seconds * 1_000_000 + $microseconds) * 1_000;
    }
}
