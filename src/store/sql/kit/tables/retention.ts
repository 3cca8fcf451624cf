import { int, nullable, table, text, time, uuid } from './table.ts';

/** The instance that runs the background jobs. At most one row. */
export const JOB_LEASES = table('job_leases', {
  jobs: text,
  holder: uuid,
  end_time: time,
});

export const RETENTION_POLICIES = table('retention_policies', {
  namespace: text,
  name: text,
  /** Row keys of the scope. Both null: the namespace. */
  run: nullable(int),
  experiment: nullable(int),
  /** JSON text: the policy without its scope. */
  policy: text,
  interval_ms: int,
  create_time: time,
  update_time: time,
  due_time: time,
  /** The execution that is under way, if its lease has not ended. */
  lease: nullable(uuid),
  lease_end_time: nullable(time),
  /** The last execution that ended; null and empty before the first. */
  last_start_time: nullable(time),
  last_end_time: nullable(time),
  /** JSON text: the numbers of what was removed. */
  last_removed: text,
  last_error_reason: text,
  last_error_message: text,
});
