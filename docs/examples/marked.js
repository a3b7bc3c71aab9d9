// Middleware for Express: marks each page for `howfar record`. app.use(require("./marked.js"))
const dgram = require("node:dgram");
const line = dgram.createSocket("udp4").unref();
const [host, port] = (process.env.HOWFAR_MARKS || "").split(":");

function marked(request, response, next) {
  const begun = process.hrtime.bigint();
  const path = request.path || request.url;
  response.on("finish", () => {
    const text = `page ${process.pid} ${begun} ${process.hrtime.bigint()} http ${path}`;
    if (port) line.send(text, Number(port), host);
  });
  next();
}

module.exports = marked;
