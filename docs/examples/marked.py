# Middleware for WSGI: marks each page for `howfar record`.
import os, socket, time


def marked(application, line=socket.socket(socket.AF_INET, socket.SOCK_DGRAM)):
    host, _, port = os.environ.get("HOWFAR_MARKS", "").rpartition(":")

    def page(environ, start_response):
        begun = time.monotonic_ns()
        try:
            yield from application(environ, start_response)
        finally:
            text = f"page {os.getpid()} {begun} {time.monotonic_ns()} http {environ['PATH_INFO']}"
            if port:
                line.sendto(text.encode(), (host, int(port)))

    return page
