/**
 * All limits of the service. GetServerInfo returns them. `npm run generate` writes them into gen/, and with their
 * comments into docs/limitations.md.
 */
export const LIMITS = Object.freeze({
  /** One request or response message, and so one frame of AppendSteps. */
  messageBytes: 1024 * 1024,
  /**
   * Milliseconds from the first byte of a request message to its last one. Then the call ends with MESSAGE_TIMEOUT.
   */
  messageMs: 30_000,
  /**
   * Incomplete messages of one connection. At the limit, the server reads one message of the connection and those of
   * at most 64 KiB, and holds back the others by flow control.
   */
  unfinishedBytesPerConnection: 16 * 1024 * 1024,
  /** Incomplete messages of all connections. At the limit, the server stops reading them, as above. */
  unfinishedBytes: 128 * 1024 * 1024,
  /**
   * Messages, map entries and list elements of one request message, at all depths, without lists of tokens and
   * log-probabilities. In JSON, everything between brackets and commas counts. Less where the heap of the server is
   * small.
   */
  messageValues: 128 * 1024,
  /** One encoded step, which must fit into a response message. */
  stepBytes: 1024 * 1024 - 4096,
  /** A state sent inline in a step. Store larger ones with PutState first; client helpers do. */
  inlineStateBytes: 512 * 1024,
  /** An inline state below this size is stored in the row of its step, and is read by reference only (S1). */
  smallStateBytes: 4096,
  /** Data of a content or tensor from this size on is stored once, as a state, and is read by its digest. */
  contentStateBytes: 16 * 1024,
  /** Actions of one step, and observations of one step. */
  stepParts: 1024,
  /** The type of an action or observation. */
  typeBytes: 128,
  /** The name of an action. */
  actionNameBytes: 256,
  /** The `call_id` of an action or observation. */
  callIdBytes: 4096,
  /** The location of a content. */
  uriBytes: 2048,
  /** The media type of a content or state. */
  mediaTypeBytes: 128,
  /** The type of the items of a tensor. */
  dtypeBytes: 16,
  /** Dimensions of a tensor. */
  tensorDimensions: 32,
  /** One state. */
  stateBytes: 256 * 1024 * 1024,
  /** One chunk of a state, on the wire and in the store. */
  chunkBytes: 256 * 1024,
  /** States of one step. */
  statesPerStep: 256,
  /** Entries of one AppendBatch. */
  batchEntries: 1000,
  /** Milliseconds that an entry of AppendBatch waits for a trajectory that another transaction holds. */
  entryLockMs: 100,
  /** Tags that a message sets for one of its steps. A trajectory can have any number of tags. */
  tagsPerStep: 16,
  /** The name of a state. */
  stateNameBytes: 64,
  /** Labels of one step. */
  stepLabels: 16,
  /** The key of a label of a step. */
  labelKeyBytes: 64,
  /** The value of a label of a step. */
  labelValueBytes: 256,
  /** Entries of one metric map. */
  metrics: 256,
  /** The key of a metric. */
  metricKeyBytes: 128,
  /** Keys in `scored_metrics` of a trajectory, with those of its source. */
  scoredMetrics: 16,
  /** Rows of a page if the request does not set `page_size`. */
  defaultPageSize: 50,
  /** Rows of a page. A larger `page_size` means this value. A page also ends at 1 MiB. */
  maxPageSize: 1000,
  /** Pairs of rewards of one comparison. */
  compareSteps: 10_000,
  /**
   * Messages, and pieces of states and of the page, of more than 128 KiB that wait in one HTTP/2 connection because
   * the client does not read them. Further ones wait until there is room, up to `streamsPerConnection` times
   * `messageBytes`.
   */
  unsentBytesPerConnection: 16 * 1024 * 1024,
  /** Unacked bytes of one append stream. At the limit, the server stops reading the stream. */
  streamWindowBytes: 2 * 1024 * 1024,
  /**
   * Memory, estimated, of steps of all calls that were received and are not stored yet. At the limit, the server
   * decodes no further message with steps (MS3). Less where the heap of the server is small.
   */
  waitingBytes: 128 * 1024 * 1024,
  /**
   * Streams at once on one HTTP/2 connection. Over HTTP/1.1, requests that wait for the response to an earlier one.
   */
  streamsPerConnection: 100,
  /**
   * Calls at once of one principal, with all its keys, on a server with authentication. Further ones get CALLER_LIMIT.
   */
  streamsPerPrincipal: 5000,
  /** Reads with `follow` of one principal, in the same way. */
  followersPerPrincipal: 1000,
  /** Watched subjects of one principal, in the same way. */
  watchersPerPrincipal: 1000,
  /**
   * Connections of one address that have not shown a valid credential, on a server with authentication. At the limit,
   * each new one closes the one that has been idle longest. If none is idle, it gets CALLER_LIMIT.
   */
  connectionsPerAddress: 1000,
  /** Depth of a branch. A root has 0, a branch one more than the owner of its branch point. */
  branchDepth: 10_000,
  /** Branches that the error of a rejected deletion lists. */
  namedBranches: 20,
  /**
   * All headers of an error, including its message and details. Longer text is cut and ends with `...`; violations
   * that do not fit are counted.
   */
  errorBytes: 6 * 1024,
  /** A run's own config or overrides, or an experiment's default config, as JSON text. */
  configBytes: 128 * 1024,
  /** An effective config: the result of merging these. */
  effectiveConfigBytes: 256 * 1024,
  /** Nesting of objects and lists in a config. */
  configDepth: 100,
  /** Paths of one `removed_config_paths`. */
  removedConfigPaths: 100,
  /** Each of these paths. */
  configPathBytes: 256,
  /** Timings of one stage. */
  timings: 64,
  /** Points of one LogMetrics. */
  metricPoints: 10_000,
  /** The name of a metric series. */
  seriesNameBytes: 256,
  /** Runs of one ReadMetrics. */
  metricRuns: 100,
  /** Runs of one CompareRuns. */
  comparedRuns: 20,
  /** Pairs of rewards that CompareRuns lists of each run. */
  compareRunSteps: 1000,
  /** Config differences that CompareRuns lists of each run. */
  configDifferences: 1000,
  /** Open stages that a progress lists. Its counts include all stages. */
  openStages: 100,
  /** All error texts of a rollout's result together. */
  resultErrorBytes: 128 * 1024,
  /** Validators of one task. */
  validators: 16,
  /** All texts of the validators of one task. */
  validatorBytes: 256 * 1024,
  /** Validations of one attempt whose name is not the type of a validator of the task. */
  freeValidations: 128,
  /** Rollouts of one CreateRollouts with `claim`. */
  claimedRollouts: 100,
  /** Combinations in one response of Summarize. */
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
