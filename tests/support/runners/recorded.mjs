// What recorded_tasks.py has for `pyworker run`, for the Node runner: see tests/torture.
import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

const file = `${process.env.PYWORKER_HISTORY}/node-${process.pid}.jsonl`
const record = (what, fields) =>
  appendFileSync(file, JSON.stringify({ what, t: Date.now() / 1000, ...fields }) + '\n', { mode: 0o600 })

async function recorded(job, work) {
  const about = { id: Number(job.id), run: Number(job.run), pid: process.pid }
  record('begin', { ...about, parent: process.pid, task: job.task_identifier,
    sequence: job.sequence_key ?? null, queue: job.queue_name ?? null })
  try {
    await work()
    if (Math.random() < 0.1) throw new Error('as it happens')
  } finally {
    record('end', about)
  }
}

const plain = (payload, job) => recorded(job, () => sleep(Math.random() * 30))
const effect = (payload, job) => job.transaction(client => recorded(job, async () => {
  await client.query('insert into public.effects values ($1, $2)', [job.id, job.run])
  await sleep(Math.random() * 30)
}))

export default { plain, plain_async: plain, only_once: plain, effect, effect_async: effect, member: plain }
