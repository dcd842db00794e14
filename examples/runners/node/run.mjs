// node run.mjs ./handlers.mjs, with DATABASE_URL or PG* variables. The file's default export is an object of
// handlers by task: async (payload, job) => result. Its export atMostOnce may name tasks whose jobs never run
// twice, whatever delivery they were added with.
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { Worker } from './worker.mjs'

const { default: handlers, atMostOnce } = await import(pathToFileURL(resolve(process.argv[2])))
const { PYWORKER_SCHEMA: schema = 'pyworker', PYWORKER_RUN_CONCURRENCY: concurrency = '10' } = process.env
let worker
for (const name of ['SIGTERM', 'SIGINT']) process.on(name, () => worker.stop())
do {
  worker = new Worker(handlers, { schema, concurrency: Number(concurrency), atMostOnce, former: worker })
  await worker.run()
} while (!worker.stopping) // others had its jobs
process.exit(worker.exitCode)
