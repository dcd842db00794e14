// The handlers of tests/examples/test_runners.py for examples/runners/node.
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Report } from "./job.mjs"

const pool = new pg.Pool()
pool.on('error', () => {})
const see = (job, told) =>
  pool.query('insert into seen (job_id, attempts, task, told) values ($1, $2, $3, $4)',
    [job.id, job.attempts, job.task_identifier, told ?? null])

async function note(payload, job) {
  await see(job)
  await sleep(payload.ms ?? 20)
}

async function act({ what, ...members }, job) {
  await see(job)
  throw new Report(what, members)
}

export const atMostOnce = ['act_once']

export default {
  act, act_once: act, note, deliver: note, in_turn: note,
  async flaky(payload, job) {
    await see(job)
    if (job.attempts === 1) throw new Error('not yet')
  },
  async book(payload, job) {
    await see(job)
    await job.transaction(async client => {
      await client.query('insert into booked values ($1)', [job.id])
      await sleep(20)
    })
  },
  async twice(payload, job) {
    const book = id => job.transaction(client => client.query('insert into booked values ($1)', [id]))
    await book(job.id)
    await book(-1).catch(() => {})
    await see(job, await job.once('mail').catch(error => error.code === 'PW002')) // on the connection of book
  },
  async answer(payload) { return payload },
  async nul() { return { text: 'a\0b\ud800' } },
  async step(payload, job) {
    await see(job, await job.once('mail'))
    if (job.attempts === 1) throw new Error('again')
  },
  async wait(payload, job) {
    await see(job)
    await sleep(30000, null, { signal: job.signal })
  },
  async deaf(payload, job) {
    await see(job)
    await sleep(30000)
  },
}
