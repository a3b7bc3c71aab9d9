// Client programs of `benches/drivers.py` in Node, by name: node clients.mjs NAME. What they do is said in python_clients.py.
// NODE_PATH names the folder of the libraries.
import assert from 'node:assert'
import dgram from 'node:dgram'
import { createRequire } from 'node:module'

const require = createRequire(import.meta.url)
const QUERY = 'SELECT c FROM sbtest1 WHERE id = ?'
const NUMBERED = 'SELECT c FROM sbtest1 WHERE id = $1'
const PREPARED_NUMBERED = 'SELECT c FROM sbtest1 AS prepared WHERE id = $1'
const UPDATE = 'UPDATE sbtest1 SET k = k + 1 WHERE id = 1'
const ROWS = 'SELECT id FROM sbtest1 WHERE id <= 2000'
const KEYS = [1, 2, 3]
const PREPARED_KEYS = [11, 12]
const BATCH = 100
const { DB_HOST, DB_PORT, DB_USER, DB_PASSWORD, DB_NAME, HOWFAR_MARKS } = process.env
const LOGIN = { host: DB_HOST, port: Number(DB_PORT), user: DB_USER, password: DB_PASSWORD, database: DB_NAME }

async function step(name, act) {
  const begun = process.hrtime.bigint()
  const result = await act()
  const text = `page 0 ${begun} ${process.hrtime.bigint()} mark ${name}`
  const [host, port] = HOWFAR_MARKS.split(':')
  const line = dgram.createSocket('udp4')
  await new Promise((sent) => line.send(text, Number(port), host, sent))
  line.close()
  return result
}

async function each(keys, act) {
  for (const key of keys) await act(key)
}

async function mysql2() {
  const line = await step('connect', () => require('mysql2/promise').createConnection(LOGIN))
  await step('queries', () => each(KEYS, (key) => line.query(QUERY, [key])))
  await step('prepared', () => each(PREPARED_KEYS, (key) => line.execute(QUERY, [key])))
  await step('transaction', async () => {
    await line.beginTransaction()
    await line.query(UPDATE)
    await line.commit()
  })
  await line.end()
}

async function mariadb() {
  const line = await step('connect', () => require('mariadb').createConnection(LOGIN))
  await step('queries', () => each(KEYS, (key) => line.query(QUERY, [key])))
  await step('prepared', async () => {
    const statement = await line.prepare(QUERY)
    await each(PREPARED_KEYS, (key) => statement.execute([key]))
    statement.close()
  })
  await step('transaction', async () => {
    await line.beginTransaction()
    await line.query(UPDATE)
    await line.commit()
  })
  await line.end()
}

// The server rests in each query, so that two are under way at once however slowly this program sends them.
async function mariadbPipeline() {
  const line = await step('connect', () => require('mariadb').createConnection(LOGIN))
  const ask = (key) => line.query(QUERY.replace('c FROM', 'c, SLEEP(0.05) FROM'), [key])
  const [first, ...others] = KEYS
  await step('queries', async () => {
    await ask(first)
    await Promise.all(others.map(ask))
  })
  await step('prepared', () => line.batch('UPDATE sbtest1 SET k = k + 1 WHERE id = ?', KEYS.map((key) => [key])))
  await line.end()
}

async function pg() {
  const line = new (require('pg').Client)(LOGIN)
  await step('connect', () => line.connect())
  await step('queries', () => each(KEYS, (key) => line.query(NUMBERED, [key])))
  await step('prepared', () =>
    each(PREPARED_KEYS, (key) => line.query({ name: 'prepared', text: PREPARED_NUMBERED, values: [key] })))
  await step('transaction', () => each(['BEGIN', UPDATE, 'COMMIT'], (text) => line.query(text)))
  await line.end()
}

async function pgCursor() {
  const line = new (require('pg').Client)(LOGIN)
  await step('connect', () => line.connect())
  await step('rows', async () => {
    const { stream } = line.connection
    stream.cork() // or the machine's load decides whether the server answers before the first fetch is sent
    const cursor = line.query(new (require('pg-cursor'))(ROWS))
    const read = cursor.read(BATCH)
    stream.uncork()
    let rows = 0
    for (let got = await read; got.length > 0; got = await cursor.read(BATCH)) rows += got.length
    assert.equal(rows, 2000)
    await cursor.close()
  })
  await line.end()
}

const programs = { mysql2: ['mysql2', mysql2], mariadb: ['mariadb', mariadb], 'mariadb-pipeline': ['mariadb', mariadbPipeline],
  pg: ['pg', pg], 'pg-cursor': ['pg-cursor', pgCursor] }
const [library, program] = programs[process.argv[2]]
console.log(require(`${process.env.NODE_PATH}/${library}/package.json`).version)
await program()
