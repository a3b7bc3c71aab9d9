/* What a client of the server's own library takes for the same small request: N times in turn on one connection, written to
 * stdout as 64-bit numbers of ns, which costs next to nothing where instructions are counted.
 *
 *   cc -O2 -DOF_MYSQL distance_peer.c $(mariadb_config --cflags --libs)       or -DOF_POSTGRESQL … -lpq, -DOF_REDIS … -lhiredis,
 *   -DOF_MEMCACHED … -lmemcached
 *   peer N HOST|SOCKET PORT USER PASSWORD DATABASE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(OF_MYSQL)
#include <mysql.h>
typedef MYSQL *connection;
static connection opened(char **to, int port) {
    MYSQL *mysql = mysql_init(NULL);
    int socket = to[0][0] == '/';
    return mysql_real_connect(mysql, socket ? "localhost" : to[0], to[2], to[3], to[4], port, socket ? to[0] : NULL, 0);
}
static int asked(connection mysql) {
    if (mysql_real_query(mysql, "SELECT 1", 8)) return 0;
    MYSQL_RES *result = mysql_store_result(mysql);
    if (!result || !mysql_fetch_row(result)) return 0;
    mysql_free_result(result);
    return 1;
}
#elif defined(OF_POSTGRESQL)
#include <libpq-fe.h>
typedef PGconn *connection;
static connection opened(char **to, int port) {
    char text[16];
    snprintf(text, sizeof text, "%d", port);
    const char *names[] = {"host", "port", "user", "password", "dbname", NULL};
    const char *values[] = {to[0], text, to[2], to[3], to[4], NULL};
    PGconn *postgres = PQconnectdbParams(names, values, 0);
    return PQstatus(postgres) == CONNECTION_OK ? postgres : NULL;
}
static int asked(connection postgres) {
    PGresult *result = PQexec(postgres, "SELECT 1");
    int good = PQresultStatus(result) == PGRES_TUPLES_OK;
    PQclear(result);
    return good;
}
#elif defined(OF_REDIS)
#include <hiredis/hiredis.h>
typedef redisContext *connection;
static connection opened(char **to, int port) {
    redisContext *redis = to[0][0] == '/' ? redisConnectUnix(to[0]) : redisConnect(to[0], port);
    return redis && !redis->err ? redis : NULL;
}
static int asked(connection redis) {
    redisReply *reply = redisCommand(redis, "GET howfar:no-such-key");
    int good = reply && reply->type == REDIS_REPLY_NIL;
    if (reply) freeReplyObject(reply);
    return good;
}
#else
#include <libmemcached/memcached.h>
typedef memcached_st *connection;
static connection opened(char **to, int port) {
    memcached_st *cache = memcached_create(NULL);
    memcached_behavior_set(cache, MEMCACHED_BEHAVIOR_TCP_NODELAY, 1);
    return memcached_server_add(cache, to[0], port) == MEMCACHED_SUCCESS ? cache : NULL;
}
static int asked(connection cache) {
    size_t length;
    uint32_t flags;
    memcached_return_t answer;
    char *value = memcached_get(cache, "howfar:no-such-key", 18, &length, &flags, &answer);
    free(value);
    return answer == MEMCACHED_NOTFOUND;
}
#endif

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(int count, char **arguments) {
    if (count != 7) return 2;
    connection it = opened(arguments + 2, atoi(arguments[3]));
    if (!it || !asked(it)) {
        fprintf(stderr, "no answer\n");
        return 1;
    }
    for (int left = atoi(arguments[1]); left > 0; left--) {
        long long began = now();
        if (!asked(it)) return 1;
        long long took = now() - began;
        if (fwrite(&took, sizeof took, 1, stdout) != 1) return 1;
    }
    return 0;
}
