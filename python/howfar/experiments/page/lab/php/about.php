<?php

// What the application is, as JSON: for receipts, before any page is measured.

declare(strict_types=1);

$extensions = ['mysqlnd', 'pdo_mysql', 'pdo_pgsql', 'redis', 'memcached', 'Zend OPcache'];

header('Content-Type: application/json');
echo json_encode([
    'version' => PHP_VERSION,
    'interface' => PHP_SAPI,
    'extensions' => array_filter(array_combine($extensions, array_map(phpversion(...), $extensions))),
    'opcache' => opcache_get_status(false)['opcache_enabled'] ?? false,
    'settings' => [
        'files' => array_filter([php_ini_loaded_file(), php_ini_scanned_files()]),
        'redis.pconnect.echo_check_liveness' => ini_get('redis.pconnect.echo_check_liveness'),
    ],
], JSON_THROW_ON_ERROR | JSON_UNESCAPED_SLASHES);
