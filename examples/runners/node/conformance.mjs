// The handlers of docs/conformance.md: python -m pyworker.conformance -- node run.mjs conformance.mjs
import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Report } from './job.mjs'

const note = (name, word) => appendFileSync(process.env.PYWORKER_CONFORMANCE_LOG, `${name} ${word}\n`)

async function conformance({ name, ms = 0, do: end, result, ...members }, job) {
  note(name, 'begin')
  for (const over = performance.now() + ms; performance.now() < over; ) {
    await sleep(50, null, { signal: job.signal })
    note(name, 'tick')
  }
  note(name, 'end')
  if (end) throw end === 'fail' ? new Error(members.error) : new Report(end, members)
  return result
}

export default { conformance, conformance_timeout: conformance }
