"""Pages of Debian's WordPress on MariaDB, served by PHP-FPM with one child.

    python wordpress_pages.py prepare|count ROOT | pages ROOT PAGES

ROOT is a copy of /usr/share/wordpress. The variables of `howfar lab` locate the server. `pages` prints a line of JSON with the times
of PHP in ns, and the TLS version, if any; `count` prints counters of the server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pymysql

import howfar.recording
from howfar.experiments.page.lab.php_fpm import fastcgi_parameters, find_php_fpm, send_request
from howfar.recording.marks import VARIABLE, Marks

PREPENDED = Path(howfar.recording.__file__).parent / "php"
ADDRESS = "127.0.0.1:8765"
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
define('WP_SITEURL', 'http://ADDRESS');
define('WP_HOME', 'http://ADDRESS');
$table_prefix = 'wp_';
if (!defined('ABSPATH')) { define('ABSPATH', __DIR__ . '/'); }
require_once ABSPATH . 'wp-settings.php';
""".replace("ADDRESS", ADDRESS)
INSTALL = """<?php
define('WP_INSTALLING', true);
require __DIR__ . '/wp-load.php';
require ABSPATH . 'wp-admin/includes/upgrade.php';
function wp_new_blog_notification($a, $b, $c, $d) {}
wp_install('howfar', 'admin', 'nobody@example.org', true, '', wp_generate_password());
update_option('permalink_structure', '/index.php/%postname%/');
for ($number = 0; $number < 30; $number++) {
    $post = wp_insert_post(['post_title' => "post $number", 'post_content' => str_repeat('words ', 200), 'post_status' => 'publish',
                            'tags_input' => ["tag " . $number % 7]]);
    for ($comment = 0; $comment < 3; $comment++) {
        wp_insert_comment(['comment_post_ID' => $post, 'comment_content' => 'so it is', 'comment_approved' => 1]);
    }
}
flush_rewrite_rules();
"""
TLS = """<?php
require __DIR__ . '/wp-load.php';
echo $wpdb->get_row("SHOW STATUS LIKE 'Ssl_version'")->Value;
"""
POOL = """[global]
daemonize = no
error_log = ROOT/php-fpm.log
[pages]
listen = ROOT/php.sock
pm = static
pm.max_children = 1
clear_env = no
"""
PAGES = ("/", "/index.php/post-7/")
WARM = 3
"""Pages of each kind that warm up opcache and the server's caches."""
COUNTED = ("Com_select", "Com_set_option", "Connections")


def main() -> None:
    action, root = sys.argv[1], Path(sys.argv[2])
    if action == "prepare":
        (root / "wp-config.php").write_text(CONFIG)
        (root / "howfar-install.php").write_text(INSTALL)
        (root / "howfar-tls.php").write_text(TLS)
        subprocess.run(["php", str(root / "howfar-install.php")], check=True, stdout=sys.stderr)
    elif action == "count":
        print(json.dumps(count()))
    else:
        print(json.dumps(pages(root, int(sys.argv[3]))))


def count() -> dict[str, int]:
    with pymysql.connect(read_default_file=os.environ["HOWFAR_CLIENT_CNF"]) as line, line.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS")
        found = dict(cursor.fetchall())
    return {name: int(found[name]) for name in COUNTED}


def pages(root: Path, number: int) -> dict[str, object]:
    """The times of the pages as PHP reports them, to the recorder if there is one, else to this program."""
    with Marks() as marks:
        variables = {
            VARIABLE: marks.address,
            "PHP_INI_SCAN_DIR": f":{PREPENDED}",
            "HOWFAR_PREPEND": f"{PREPENDED}/prepend.php",
        }
        pool = root / "php-fpm.conf"
        rights = "user = root\ngroup = root\n" if os.geteuid() == 0 else ""
        pool.write_text(POOL.replace("ROOT", str(root)) + rights)
        command = [str(find_php_fpm().path), "--nodaemonize", "-y", str(pool), *["-R"] * bool(rights)]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**variables, **os.environ})
        try:
            wait_for_php_fpm(root, server)
            for page in PAGES * (number + WARM):
                get(root, page, "</html>")
            tls = get(root, "/howfar-tls.php", "") if os.environ.get("HOWFAR_CA_FILE") else None
        finally:
            server.terminate()
            server.wait()
    found: dict[str, object] = {}
    for name in dict.fromkeys(page.name for page in marks.pages if "tls" not in page.name):
        found[name] = [page.took_ns for page in marks.pages if page.name == name][WARM:]
    return found | ({"tls": tls} if tls else {})


def wait_for_php_fpm(root: Path, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while not (root / "php.sock").is_socket():
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"PHP-FPM did not start: {(root / 'php-fpm.log').read_text()[-500:]}")
        time.sleep(0.02)


def get(root: Path, page: str, ends_with: str) -> str:
    file, more = root / page.removeprefix("/"), {}
    if file.suffix != ".php":
        file, path = root / "index.php", page.removeprefix("/index.php")
        more = {"REQUEST_URI": page, "PATH_INFO": path} if path != page else {"REQUEST_URI": page}
    parameters = {
        **fastcgi_parameters(file, **more),
        "HTTP_HOST": ADDRESS,
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8765",
    }
    answer = send_request(root / "php.sock", parameters, 120)
    body = answer.body.strip()
    if answer.status != 200 or not body.endswith(ends_with):
        sys.exit(
            f"{page}: status {answer.status}, {answer.headers.get('location')}, {body[-300:]} {answer.stderr[-300:]}"
        )
    return body


if __name__ == "__main__":
    main()
