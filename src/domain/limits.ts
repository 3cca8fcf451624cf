/** Every limit of the service, in one table. `docs/limitations.md` lists them; a test holds both equal. */
export const LIMITS = Object.freeze({
  /** Bytes of one request or response message. */
  messageBytes: 1024 * 1024,
  /** Milliseconds in which a message must be complete, from its first byte on. */
  messageMs: 30_000,
  /** Bytes of messages that have arrived in part: of one connection, and of all. */
  unfinishedBytesPerConnection: 16 * 1024 * 1024,
  unfinishedBytes: 128 * 1024 * 1024,
  /** Messages, map entries and elements of lists in one request message, at all depths; packed numbers without rules are free. In JSON, all values. */
  messageValues: 128 * 1024,
  /** Bytes of one encoded step, so that it can be sent back in a message of its own. */
  stepBytes: 1024 * 1024 - 4096,
  /** Bytes of a state sent inline in a step. */
  inlineStateBytes: 512 * 1024,
  /** Content bytes of this size and more are kept as a state. */
  contentStateBytes: 16 * 1024,
  /** Bytes of a state. */
  stateBytes: 256 * 1024 * 1024,
  /** Bytes of one chunk of a state on the wire and in the store. */
  chunkBytes: 256 * 1024,
  /** States by name of one step. */
  statesPerStep: 16,
  /** Bytes of a state's name. */
  stateNameBytes: 64,
  /** Entries of a metric map. */
  metrics: 256,
  /** Bytes of a metric's key. */
  metricKeyBytes: 128,
  /** Default and largest page. */
  defaultPageSize: 50,
  maxPageSize: 1000,
  /** Steps of one list of rewards of CompareTrajectories. */
  compareSteps: 10_000,
  /** Bytes of large messages that a connection has been given and has not sent. Further ones wait. */
  unsentBytesPerConnection: 16 * 1024 * 1024,
  /** Unacked bytes that one append stream may hold in the server before it stops reading. */
  streamWindowBytes: 2 * 1024 * 1024,
  /** Streams of one connection. */
  streamsPerConnection: 100,
  /** Branches between a trajectory and the root of its tree: a root has depth 0, a branch one more than the owner of its branch point. */
  branchDepth: 10_000,
  /** Branches named in a HAS_BRANCHES error. */
  namedBranches: 20,
  /** Bytes of all headers of an error: code, message and details. */
  errorBytes: 6 * 1024,
  /** Bytes of a config as given, and of an effective config. */
  configBytes: 128 * 1024,
  effectiveConfigBytes: 256 * 1024,
  /** Objects and lists that stand around a config's innermost value. */
  configDepth: 100,
  /** Paths that a run removes from the config that it starts from, and bytes of each. */
  removedConfigPaths: 100,
  configPathBytes: 256,
  /** Entries of a stage's timings. */
  timings: 64,
  /** Points of one LogMetrics. */
  metricPoints: 10_000,
  /** Bytes of the name of a metric series. */
  seriesNameBytes: 256,
  /** Runs of one ReadMetrics, and of one CompareRuns. */
  metricRuns: 100,
  comparedRuns: 20,
  /** Steps of the lists of rewards of CompareRuns, and config differences that it lists of a run. */
  compareRunSteps: 1000,
  configDifferences: 1000,
  /** Open stages that Progress lists. */
  openStages: 100,
  /** Bytes of the errors of a rollout's result together. */
  resultErrorBytes: 128 * 1024,
  /** Validations of one attempt under names that no validator of the task has as its type. */
  freeValidations: 128,
  /** Combinations that Summarize answers. */
  summaries: 10_000,
});
