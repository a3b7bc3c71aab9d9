"""Pages of Debian's WordPress on MariaDB, by `php -S`.

    python wordpress_pages.py prepare ROOT|pages ROOT PAGES

ROOT is a copy of /usr/share/wordpress. Where the server is stands in the variables of `howfar lab`. Prints a line of JSON with the
times of PHP in ns, which leave out the web server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

PORT = 8765
CONFIG = """<?php
define('DB_NAME', getenv('HOWFAR_DATABASE'));
define('DB_USER', getenv('HOWFAR_USER'));
define('DB_PASSWORD', trim(file_get_contents(getenv('HOWFAR_PASSWORD_FILE'))));
define('DB_HOST', getenv('HOWFAR_SOCKET')
    ? 'localhost:' . getenv('HOWFAR_SOCKET') : getenv('HOWFAR_HOST') . ':' . getenv('HOWFAR_PORT'));
if (getenv('HOWFAR_CA_FILE')) {
    define('MYSQL_CLIENT_FLAGS', MYSQLI_CLIENT_SSL | MYSQLI_CLIENT_SSL_DONT_VERIFY_SERVER_CERT);
}
define('DB_CHARSET', 'utf8mb4');
define('DB_COLLATE', '');
define('WP_HTTP_BLOCK_EXTERNAL', true);
define('DISABLE_WP_CRON', true);
define('WP_DEFAULT_THEME', 'twentytwentyone');
define('AUTOMATIC_UPDATER_DISABLED', true);
define('WP_SITEURL', 'http://127.0.0.1:%d');
define('WP_HOME', 'http://127.0.0.1:%d');
$table_prefix = 'wp_';
if (!defined('ABSPATH')) { define('ABSPATH', __DIR__ . '/'); }
require_once ABSPATH . 'wp-settings.php';
"""
INSTALL = """<?php
define('WP_INSTALLING', true);
require __DIR__ . '/wp-load.php';
require ABSPATH . 'wp-admin/includes/upgrade.php';
function wp_new_blog_notification($a, $b, $c, $d) {}
wp_install('howfar', 'admin', 'nobody@example.org', true, '', wp_generate_password());
for ($number = 0; $number < 30; $number++) {
    $post = wp_insert_post(['post_title' => "post $number", 'post_content' => str_repeat('words ', 200), 'post_status' => 'publish',
                            'tags_input' => ["tag " . $number % 7]]);
    for ($comment = 0; $comment < 3; $comment++) {
        wp_insert_comment(['comment_post_ID' => $post, 'comment_content' => 'so it is', 'comment_approved' => 1]);
    }
}
"""
TIMER = """<?php
$howfar_begun = hrtime(true);
register_shutdown_function(function () use ($howfar_begun) {
    file_put_contents(getenv('HOWFAR_TIMES'), (hrtime(true) - $howfar_begun) . "\\n", FILE_APPEND);
});
"""
PAGES = {"front": "/"}


def main() -> None:
    action, root = sys.argv[1], Path(sys.argv[2])
    if action == "prepare":
        (root / "wp-config.php").write_text(CONFIG % (PORT, PORT))
        (root / "howfar-install.php").write_text(INSTALL)
        subprocess.run(["php", str(root / "howfar-install.php")], check=True, stdout=sys.stderr)
        return
    times = root / "times"
    timer = root / "howfar-timer.php"
    timer.write_text(TIMER)
    # A recorder has a file of its own that runs before each page.
    prepend = [] if os.environ.get("HOWFAR_MARKS") else ["-d", f"auto_prepend_file={timer}"]
    options = ["-d", "opcache.enable=1", "-d", "opcache.enable_cli=1", *prepend]
    server = subprocess.Popen(
        ["php", *options, "-S", f"127.0.0.1:{PORT}", "-t", str(root)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOWFAR_TIMES": str(times)},
    )
    found: dict[str, list[int]] = {}
    try:
        ready()
        for name, page in PAGES.items():
            for number in range(int(sys.argv[3]) + 3):
                if number == 3:  # opcache and the server's caches are warm
                    times.unlink(missing_ok=True)
                get(page)
            if times.exists():
                found[name] = [int(line) for line in times.read_text().split()]
    finally:
        server.kill()
        server.wait()
    print(json.dumps(found))


def ready() -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            return get(PAGES["front"])
        except OSError:
            time.sleep(0.1)
    sys.exit("php -S did not answer within 30 s")


def get(page: str) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{page}", timeout=120) as answer:
        assert b"</html>" in answer.read()


if __name__ == "__main__":
    main()
