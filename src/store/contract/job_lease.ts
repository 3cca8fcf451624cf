export interface JobLeaseStore {
  /**
   * Takes or renews the lease of background jobs, by the clock of the database. Returns whether `holder` has it: false
   * while the lease of another one has not ended. It only saves work: all jobs are safe on several instances at once.
   */
  holdJobs(holder: string, leaseMs: number): Promise<boolean>;
  /** Ends the lease, if `holder` has it. */
  releaseJobs(holder: string): Promise<void>;
}
