/**
 * All limits of the service. `docs/limitations.md` lists them, and GetServerInfo returns them; a test compares both.
 */
export const LIMITS = Object.freeze({
  /** Bytes of one request or response message. */
  messageBytes: 1024 * 1024,
  /** Milliseconds from the first byte of a message until it must be complete. */
  messageMs: 30_000,
  /** Bytes of partly received messages, per connection and in total. */
  unfinishedBytesPerConnection: 16 * 1024 * 1024,
  unfinishedBytes: 128 * 1024 * 1024,
  /**
   * Messages, map entries and list elements of one request message, at all depths. Packed numbers without rules do not
   * count. In JSON, all values count.
   */
  messageValues: 128 * 1024,
  /** Bytes of one encoded step. Leaves room for the message around it in a response. */
  stepBytes: 1024 * 1024 - 4096,
  /** Bytes of an inline state in a step. */
  inlineStateBytes: 512 * 1024,
  /** Inline states with fewer bytes are stored in the row of their step. */
  smallStateBytes: 4096,
  /** Contents of at least this many bytes are stored as a state. */
  contentStateBytes: 16 * 1024,
  /** Dimensions of a tensor. */
  tensorDimensions: 32,
  /** Bytes of a state. */
  stateBytes: 256 * 1024 * 1024,
  /** Bytes of one chunk of a state on the wire and in the store. */
  chunkBytes: 256 * 1024,
  /** Named states of one step. */
  statesPerStep: 256,
  /** Entries of one AppendBatch. */
  batchEntries: 1000,
  /** How long an entry waits for a trajectory that another transaction holds, in milliseconds. */
  entryLockMs: 100,
  /** Tags that a message sets for one of its steps. */
  tagsPerStep: 16,
  /** Bytes of a state's name. */
  stateNameBytes: 64,
  /** Labels of a step, and bytes of their keys and values. */
  stepLabels: 16,
  labelKeyBytes: 64,
  labelValueBytes: 256,
  /** Entries of a metric map. */
  metrics: 256,
  /** Bytes of a metric key. */
  metricKeyBytes: 128,
  /** Keys of step metrics of a trajectory that lists can sort by. */
  scoredMetrics: 16,
  /** Default page size, and the largest one. */
  defaultPageSize: 50,
  maxPageSize: 1000,
  /** Steps of one reward list of CompareTrajectories. */
  compareSteps: 10_000,
  /** Bytes of large messages that a connection holds unsent. Further messages wait. */
  unsentBytesPerConnection: 16 * 1024 * 1024,
  /** Unacked bytes of one append stream after which the server stops reading. */
  streamWindowBytes: 2 * 1024 * 1024,
  /** Memory of steps that were received and are not stored yet, of all calls together. Further messages wait. */
  waitingBytes: 128 * 1024 * 1024,
  /** Streams of one connection. Over HTTP/1.1, requests that wait for the response to an earlier one. */
  streamsPerConnection: 100,
  /**
   * Branches between a trajectory and the root of its tree. A root has depth 0; a branch has the depth of its branch
   * point's owner plus 1.
   */
  branchDepth: 10_000,
  /** Branches listed in a HAS_BRANCHES error. */
  namedBranches: 20,
  /** Bytes of all headers of an error: code, message and details. */
  errorBytes: 6 * 1024,
  /** Bytes of a config in a request, and of an effective config. */
  configBytes: 128 * 1024,
  effectiveConfigBytes: 256 * 1024,
  /** Objects and lists that enclose the innermost value of a config. */
  configDepth: 100,
  /** Paths that a run removes from its base config, and bytes of each path. */
  removedConfigPaths: 100,
  configPathBytes: 256,
  /** Entries of a stage's timings. */
  timings: 64,
  /** Points of one LogMetrics request. */
  metricPoints: 10_000,
  /** Bytes of the name of a metric series. */
  seriesNameBytes: 256,
  /** Runs of one ReadMetrics or CompareRuns request. */
  metricRuns: 100,
  comparedRuns: 20,
  /** Steps of the reward lists of CompareRuns, and listed config differences per run. */
  compareRunSteps: 1000,
  configDifferences: 1000,
  /** Open stages that Progress lists. */
  openStages: 100,
  /** Total bytes of the errors in a rollout's result. */
  resultErrorBytes: 128 * 1024,
  /** Validators of a task, and the bytes of all their texts. */
  validators: 16,
  validatorBytes: 256 * 1024,
  /** Validations of one attempt under free names, which are no validator types of the task. */
  freeValidations: 128,
  /** Rollouts that one CreateRollouts with `claim` creates. */
  claimedRollouts: 100,
  /** Combinations in one Summarize response. */
  summaries: 10_000,
  /** Characters of one record of an archive, which also has at most `messageValues` values. */
  archiveRecordBytes: 8 * 1024 * 1024,
  /** Steps of one entry of an archive. */
  archiveSteps: 1024,
  /** Imports at once. Others wait. */
  imports: 2,
});

/** Bytes that the rows of one answer may take. Leaves room for the message around them. */
export const ANSWER_BYTES = LIMITS.messageBytes - 64 * 1024;
