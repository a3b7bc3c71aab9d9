<?php
// Says when a page began and ended: one datagram, after everything that the page itself does at its end.
(static function (): void {
    $to = get_cfg_var('howfar.marks') ?: getenv('HOWFAR_MARKS');
    $begun = hrtime(true);
    if (!$to) {
        return;
    }
    register_shutdown_function(static function () use ($to, $begun): void {
        register_shutdown_function(static function () use ($to, $begun): void {
            $name = PHP_SAPI === 'cli' ? basename($_SERVER['SCRIPT_NAME'] ?? 'php') : strtok($_SERVER['REQUEST_URI'] ?? '/', '?');
            if ($socket = @stream_socket_client("udp://$to")) {
                @fwrite($socket, sprintf('page %d %d %d php %s', getmypid(), $begun, hrtime(true), $name));
            }
        });
    });
})();
