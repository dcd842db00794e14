// node run.mjs ./handlers.mjs, with DATABASE_URL or PG* variables. The file's default export is an object of
// handlers by task: async (payload, job) => result.
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { Runner } from './worker.mjs'

const { default: handlers } = await import(pathToFileURL(resolve(process.argv[2])))
const { PYWORKER_SCHEMA: schema = 'pyworker', PYWORKER_RUN_CONCURRENCY: concurrency = '10' } = process.env
const runner = new Runner(handlers, { schema, concurrency: Number(concurrency) })
const end = () => runner.stop(runner.stopping ? 0 : runner.shutdown_s)
for (const name of ['SIGTERM', 'SIGINT']) process.on(name, end)
process.exit(await runner.run())
