// The calls of docs/protocol.md, each in a transaction of its own, on one connection.
import pg from 'pg'
import { json } from './job.mjs'

const COMMON = { lock_timeout: '0', idle_in_transaction_session_timeout: '0' }
// A turn with reports waits for the disk anyway.
export const FOR_WORK = { ...COMMON, statement_timeout: '0', synchronous_commit: 'off' }
export const FOR_BEAT = { ...COMMON, statement_timeout: '4s', tcp_keepalives_idle: '8',
  tcp_keepalives_interval: '2', tcp_keepalives_count: '3', tcp_user_timeout: '14000' }

export class Session {
  // patience_s: without an answer for so long, the connection counts as lost.
  static async connect(connection, schema, settings, patience_s, hear) {
    const client = new pg.Client({ ...connection, query_timeout: patience_s * 1000 })
    client.on('error', () => {})
    client.on('notification', ({ payload }) => hear(payload))
    await client.connect()
    for (const pair of Object.entries(settings)) await client.query('select set_config($1, $2, false)', pair)
    await client.query(`listen ${schema}`)
    return Object.assign(new Session(), { client, schema })
  }

  async rows(call, values) {
    return (await this.client.query(`select * from ${this.schema}.${call}`, values)).rows
  }

  async openWorker(info) {
    return (await this.rows('open_worker($1, 1) as answer', [info]))[0].answer
  }

  work(worker, done, others, room, { tasks, queues, flags }) {
    const reports = json(others.map(({ id, run, report }) => ({ ...report, id, run })))
    const completed = [done.map(job => job.id), done.map(job => job.run), done.map(job => job.report.result)]
    return this.rows('work($1, $2::bigint[], $3::bigint[], $4::jsonb[], $5::jsonb, $6, $7, $8, $9)',
      [worker, ...completed, reports, room, tasks, queues, flags])
  }

  beat(worker, jobs, lock, lostAnswer) {
    return this.rows('beat($1, $2::bigint[], $3::bigint[], $4, lost_answer => $5)',
      [worker, jobs.map(job => job.id), jobs.map(job => job.run), lock, lostAnswer])
  }

  closeWorker(worker) {
    return this.rows('close_worker($1)', [worker])
  }

  cut() {
    this.client.connection.stream.destroy()
  }

  end() {
    return this.client.end()
  }
}
