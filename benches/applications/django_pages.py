"""Pages of a Django application on PostgreSQL, with Debian's python3-django; run with Debian's own Python.

    /usr/bin/python3 django_pages.py prepare|list,joined PAGES

libpq's environment variables locate the server. `list` fetches the author of each post in a separate query, `joined` in one query
for all; `list.direct` and `joined.direct` do so over the socket in the directory DIRECT. Prints a line of JSON with the times in ns
and the TLS version, if any, and reports each page to a recorder.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time

import django
from django.conf import settings
from django.http import HttpResponse
from django.urls import path

POSTS, AUTHORS = 60, 60

settings.configure(
    SECRET_KEY="of a test",
    ALLOWED_HOSTS=["testserver"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
    INSTALLED_APPS=["django.contrib.contenttypes"],
    DATABASES={name: {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ.get("PGDATABASE", ""), "HOST": host,
                      "CONN_MAX_AGE": None} for name, host in (("default", ""), ("direct", os.environ.get("DIRECT", "")))},
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
)  # fmt: skip
django.setup()

from django.db import connection, models  # noqa: E402 - settings come first
from django.template import Context, Template  # noqa: E402
from django.test import Client  # noqa: E402


class Author(models.Model):
    name = models.CharField(max_length=80)

    class Meta:
        app_label = "blog"


class Post(models.Model):
    title = models.CharField(max_length=200)
    body = models.TextField()
    author = models.ForeignKey(Author, on_delete=models.CASCADE)

    class Meta:
        app_label = "blog"


TEMPLATE = Template(
    "{% for post in posts %}<h2>{{ post.title }}</h2><p>{{ post.author.name }}: {{ post.body }}</p>{% endfor %}"
)


def page(posts):
    return HttpResponse(TEMPLATE.render(Context({"posts": posts})))


urlpatterns = [path("<name>", lambda request, name: page(queries(*name.partition(".")[::2]).order_by("id")))]


def queries(name, database):
    found = Post.objects.using(database or "default")
    return found.select_related("author") if name == "joined" else found


def prepare() -> None:
    with connection.schema_editor() as editor:
        editor.create_model(Author)
        editor.create_model(Post)
    Author.objects.bulk_create(Author(name=f"author {number}") for number in range(AUTHORS))
    authors = list(Author.objects.all())
    Post.objects.bulk_create(
        Post(title=f"post {number}", body="words " * 40, author=authors[number % AUTHORS]) for number in range(POSTS)
    )


def main() -> None:
    if sys.argv[1] == "prepare":
        prepare()
        return
    names, pages = sys.argv[1].split(","), int(sys.argv[2])
    host, _, port = os.environ.get("HOWFAR_MARKS", "").rpartition(":")
    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client, found = Client(), {name: [] for name in names}
    rng = random.Random(20_265)
    for number in range(pages + 2):
        # The order is random, so that after-effects of one page do not always affect the same other page.
        for name in rng.sample(names, len(names)):
            begun = time.monotonic_ns()
            assert client.get(f"/{name}").status_code == 200
            ended = time.monotonic_ns()
            if number < 2:
                continue  # warm-up: templates and connections are created
            found[name].append(ended - begun)
            if port:
                line.sendto(f"page {os.getpid()} {begun} {ended} http {name}".encode(), (host, int(port)))
    if os.environ.get("HOWFAR_CA_FILE"):
        with connection.cursor() as cursor:
            cursor.execute("SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            (found["tls"],) = cursor.fetchone()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
