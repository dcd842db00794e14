// node run.mjs ./handlers.mjs, with DATABASE_URL or PG* variables. The file's default export is an object of
// handlers by task: async (payload, job) => result. Its export atMostOnce may name tasks whose jobs never run
// twice, whatever delivery they were added with.
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { Worker } from './worker.mjs'

const leave = why => { console.error(`run.mjs: ${why}`); process.exit(2) }
const file = process.argv[2] ?? leave('name the file with the handlers: node run.mjs ./handlers.mjs')
const { href } = pathToFileURL(resolve(file))
const { default: handlers, atMostOnce } = await import(href).catch(error => {
  if (error.code === 'ERR_MODULE_NOT_FOUND' && error.url === href) leave(`there is no file ${file}`)
  throw error
})
if (!Object.keys(handlers ?? {})[0]) leave(`${file} has no handlers: export default { task: async () => {} }`)
const { PYWORKER_SCHEMA: schema = 'pyworker', PYWORKER_RUN_CONCURRENCY: concurrency = '10' } = process.env
let worker
for (const name of ['SIGTERM', 'SIGINT']) process.on(name, () => worker.stop())
do {
  worker = new Worker(handlers, { schema, concurrency: Number(concurrency), atMostOnce, former: worker })
  await worker.run()
} while (!worker.stopping) // others had its jobs
console.error(new Date().toISOString(), 'stopped')
process.exit(worker.exitCode)
