<?php
// Says when a page began and ended, and its status: one datagram, after everything that the page itself does at its end. An object's
// destructor also runs where a shutdown function calls exit; after a fatal error only shutdown functions run.
(static function (): void {
    $to = get_cfg_var('howfar.marks') ?: getenv('HOWFAR_MARKS');
    if (!$to) {
        return;
    }
    $page = new class($to) {
        private static $kept;
        private $to;
        private $begun;

        public function __construct(string $to)
        {
            [self::$kept, $this->to, $this->begun] = [$this, $to, hrtime(true)];
        }

        public function mark(): void
        {
            if (!$this->to) {
                return;
            }
            $name = PHP_SAPI === 'cli' ? basename($_SERVER['SCRIPT_NAME'] ?? 'php') : strtok($_SERVER['REQUEST_URI'] ?? '/', '?');
            $by = array_filter(explode(',', getenv('HOWFAR_PAGE_BY') ?: ''));
            $query = http_build_query(array_intersect_key($_GET ?? [], array_flip($by)));
            if ($socket = @stream_socket_client("udp://{$this->to}")) {
                $mark = [getmypid(), $this->begun, hrtime(true), http_response_code() ?: 0, $name . ($query ? "?$query" : '')];
                @fwrite($socket, vsprintf('page %d %d %d php:%03d %s', $mark));
            }
            $this->to = null;
        }

        public function __destruct()
        {
            $this->mark();
        }
    };
    register_shutdown_function(static function () use ($page): void {
        register_shutdown_function(static function () use ($page): void {
            $fatal = E_ERROR | E_PARSE | E_CORE_ERROR | E_COMPILE_ERROR | E_USER_ERROR | E_RECOVERABLE_ERROR;
            if ((error_get_last()['type'] ?? 0) & $fatal) {
                $page->mark();
            }
        });
    });
})();
