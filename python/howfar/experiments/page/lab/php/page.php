<?php

// One page: runs the script that the parameter HOWFAR_PAGE names, and tells what it did in the header X-Howfar-Page.
// Not here: how the script is made (engine/page.py), and who asks for pages.

declare(strict_types=1);

namespace Howfar;

require __DIR__ . '/Tally.php';
require __DIR__ . '/Services.php';
require __DIR__ . '/Values.php';
require __DIR__ . '/Steps.php';

/** @return array<string, mixed> a PageScript as JSON, whole and checked by who wrote it */
function readScript(string $path): array
{
    $text = $path === '' ? false : file_get_contents($path);
    if ($text === false) {
        throw new \RuntimeException('the parameter HOWFAR_PAGE names no script that can be read');
    }

    return json_decode($text, associative: true, flags: JSON_THROW_ON_ERROR);
}

/** What went wrong, without the passwords that a driver might quote. */
function complaint(\Throwable $failure, array $script): string
{
    $secrets = array_filter(array_column(array_intersect_key($script, array_flip(Services::NAMES)), 'password'));

    return $failure::class . ': ' . str_replace($secrets, '***', $failure->getMessage());
}

/** @param array<string, mixed> $script */
function answer(array $script, Tally $tally): void
{
    $services = new Services($script, $tally);
    try {
        (new Steps($script, $services, $tally))->run();
        // For who wants to see from outside which connections a page has.
        usleep((int) ($_SERVER['HOWFAR_LINGER_US'] ?? 0));
    } finally {
        $services->leave();
    }
    header('X-Howfar-Page: ' . $tally->header());
    echo "howfar page done\n";
}

header('Content-Type: text/plain; charset=utf-8');
$tally = new Tally();
$script = [];
try {
    $script = readScript($_SERVER['HOWFAR_PAGE'] ?? '');
    answer($script, $tally);
} catch (\Throwable $failure) {
    http_response_code(500);
    echo complaint($failure, $script), "\n";
}
