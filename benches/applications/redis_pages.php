<?php
/* Pages that use Redis, by Debian's php-redis: its session handler, and products that are asked for one by one.

    php redis_pages.php prepare
    php redis_pages.php cart,bulk PAGES

`bulk` asks for all products at once. Prints a line of JSON with the times in ns and tells a recorder of each page. */

const PRODUCTS = 40;

$socket = getenv('HOWFAR_SOCKET');
[$host, $port] = [getenv('HOWFAR_HOST'), (int) getenv('HOWFAR_PORT')];
$redis = new Redis();
$socket ? $redis->connect($socket) : $redis->connect($host, $port);
if ($argv[1] === 'prepare') {
    for ($number = 0; $number < PRODUCTS; $number++) {
        $redis->set("product:$number", str_repeat("words of $number ", 20));
    }
    exit(0);
}
ini_set('session.save_handler', 'redis');
ini_set('session.save_path', $socket ? "unix://$socket" : "tcp://$host:$port");

function page(Redis $redis, string $name): void
{
    session_id('visitor');
    session_start(['use_cookies' => 0, 'use_only_cookies' => 0, 'cache_limiter' => '']);
    $keys = array_map(fn ($number) => "product:$number", range(0, PRODUCTS - 1));
    $products = $name === 'bulk' ? $redis->mGet($keys) : array_map(fn ($key) => $redis->get($key), $keys);
    $_SESSION['seen'] = count(array_filter($products));
    session_write_close();
    if ($_SESSION['seen'] !== PRODUCTS) {
        exit(1);
    }
    md5(str_repeat(implode($products), 40));  // what a page makes of it
}

[$to, $line] = [explode(':', getenv('HOWFAR_MARKS') ?: ''), socket_create(AF_INET, SOCK_DGRAM, SOL_UDP)];
$found = [];
for ($number = 0; $number < $argv[2] + 2; $number++) {
    $names = explode(',', $argv[1]);
    foreach ($number % 2 ? $names : array_reverse($names) as $name) {
        $begun = hrtime(true);
        page($redis, $name);
        $ended = hrtime(true);
        if ($number < 2) {
            continue;
        }
        $found[$name][] = $ended - $begun;
        if (isset($to[1])) {
            $text = 'page ' . getmypid() . " $begun $ended http $name";
            socket_sendto($line, $text, strlen($text), 0, $to[0], (int) $to[1]);
        }
    }
}
echo json_encode($found), "\n";
