import { create } from '@bufbuild/protobuf';
import { type Duration, DurationSchema } from '@bufbuild/protobuf/wkt';
import {
  ApplyRetentionResponseSchema,
  type PlanRetentionResponse,
  PlanRetentionResponseSchema,
  RetentionExecutionSchema,
  type RetentionItem,
  RetentionItemSchema,
  RetentionPin,
  RetentionPolicySchema,
  RetentionService,
  type StoredRetentionPolicy,
  StoredRetentionPolicySchema,
  type RetentionPolicy as WirePolicy,
} from '../../../gen/es/anabranch/v1/retention_service_pb.js';
import { OnBranches } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Instant } from '../../domain/instant.ts';
import type { TrajectoryStatus } from '../../domain/lifecycle.ts';
import {
  addSizes,
  ENDED,
  NOTHING,
  type Pin,
  type RemovedSize,
  type RetentionPart,
  type RetentionPolicy,
  type StatePolicy,
  type TrajectoryPolicy,
} from '../../domain/retention.ts';
import type { PastExecution, StoredPolicy } from '../../domain/retention_policies.ts';
import { collectFreed } from '../../stream/maintenance.ts';
import { messageOf, sizerOf } from '../answer/message.ts';
import { pageByKey } from '../answer/page.ts';
import { fromInstant, fromMillis, fromStatus, required, toInstant, toMillis, toStatuses } from '../convert/values.ts';
import type { Call, Methods } from '../method.ts';
import { pageArgsOf } from '../request/page_token.ts';
import { toOnBranches } from '../trajectory/requests.ts';

/** Methods of retention (S14). */
export const retentionMethods: Methods<typeof RetentionService, 'planRetention' | 'applyRetention'> = {
  planRetention: {
    async *messages({ policy }, call) {
      for await (const message of retain(call, policy, { apply: false })) {
        yield create(PlanRetentionResponseSchema, message);
      }
    },
  },
  applyRetention: {
    async *messages({ policy, asOf }, call) {
      for await (const message of retain(call, policy, { asOf: toInstant(asOf), apply: true })) {
        yield create(ApplyRetentionResponseSchema, message);
      }
    },
  },
};

type Message = Partial<Pick<PlanRetentionResponse, 'asOf' | 'items'>> & { readonly totals?: RemovedSize };

/** Bytes of the items of a message, about. */
const MESSAGE_BYTES = 64 * 1024;

/** Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND, STORAGE_FULL, SERVER_DRAINING. */
async function* retain(
  { app, caller }: Call,
  policy: WirePolicy | undefined,
  how: { readonly asOf?: Instant | undefined; readonly apply: boolean },
): AsyncGenerator<Message, void, undefined> {
  const { asOf, parts } = await app.store.retain(caller.namespace, toPolicy(policy), how);
  yield { asOf: fromInstant(asOf) };
  let total: RemovedSize = NOTHING;
  for await (const part of parts) {
    app.drain.throwIfBegun();
    total = addSizes(total, part.size);
    for (const items of messagesOf(part)) yield { items };
  }
  if (how.apply) await collectFreed(app.store, app.settings, () => app.drain.begun);
  app.drain.throwIfBegun();
  yield { asOf: fromInstant(asOf), totals: total };
}

function* messagesOf(part: RetentionPart): Generator<RetentionItem[]> {
  let items: RetentionItem[] = [];
  let bytes = 0;
  for (const item of itemsOf(part)) {
    items.push(item);
    bytes += 128;
    for (const text of [...item.stateNames, ...item.contentMediaTypes]) bytes += 4 + Buffer.byteLength(text);
    if (bytes < MESSAGE_BYTES) continue;
    yield items;
    items = [];
    bytes = 0;
  }
  if (items.length > 0) yield items;
}

function* itemsOf({ trajectoryId, deletedFrom, pruned, pinned }: RetentionPart): Generator<RetentionItem> {
  if (deletedFrom !== undefined) yield create(RetentionItemSchema, { trajectoryId, deletedFrom });
  for (const { stepNumber, names, mediaTypes } of pruned) {
    const removed = { stateNames: [...names], contentMediaTypes: [...mediaTypes] };
    yield create(RetentionItemSchema, { trajectoryId, stepNumber, ...removed });
  }
  for (const { stepNumber, pins } of pinned) {
    const step = stepNumber === undefined ? {} : { stepNumber };
    yield create(RetentionItemSchema, { trajectoryId, ...step, pins: pins.map((pin) => PINS[pin]) });
  }
}

const PINS: Readonly<Record<Pin, RetentionPin>> = {
  TAG: RetentionPin.TAG,
  BRANCH: RetentionPin.BRANCH,
  LIVE_ROLLOUT: RetentionPin.LIVE_ROLLOUT,
};

/** Errors: INVALID_REQUEST, if there is no policy. The rules of the proto require exactly one kind. */
function toPolicy(policy: WirePolicy | undefined): RetentionPolicy {
  const { runId, experimentId, states, trajectories } = required(policy, 'policy');
  const scope = { runId: runId || undefined, experimentId: experimentId || undefined };
  return states === undefined
    ? { ...scope, trajectories: toTrajectoryPolicy(required(trajectories, 'policy.trajectories')) }
    : { ...scope, states: toStatePolicy(states) };
}

function toStatePolicy(policy: NonNullable<WirePolicy['states']>): StatePolicy {
  return {
    names: policy.stateNames,
    mediaTypes: policy.contentMediaTypes,
    keepLast: Number(policy.keepLast),
    keepEvery: policy.keepEvery,
    olderThan: toNanos(policy.olderThan),
    keepTagged: !policy.includeTagged,
    keepBranchPoints: !policy.includeBranchPoints,
    keepTerminal: !policy.includeTerminal,
  };
}

function toTrajectoryPolicy(policy: NonNullable<WirePolicy['trajectories']>): TrajectoryPolicy {
  const { onBranches } = policy;
  return {
    statuses: policy.statuses.length === 0 ? ENDED : (toStatuses(policy.statuses) as TrajectoryStatus[]),
    labels: new Map(Object.entries(policy.labels)),
    keepLast: Number(policy.keepLast),
    olderThan: toNanos(policy.olderThan),
    keepTagged: !policy.includeTagged,
    onBranches: onBranches === OnBranches.UNSPECIFIED ? 'KEEP_SHARED' : toOnBranches(onBranches),
  };
}

function toNanos(duration: Duration | undefined): bigint {
  return duration === undefined ? 0n : duration.seconds * 1_000_000_000n + BigInt(duration.nanos);
}

/** Defaults are filled in. */
function fromPolicy(policy: RetentionPolicy): WirePolicy {
  const scope = { runId: policy.runId ?? '', experimentId: policy.experimentId ?? '' };
  return create(
    RetentionPolicySchema,
    'states' in policy
      ? { ...scope, states: fromStatePolicy(policy.states) }
      : { ...scope, trajectories: fromTrajectoryPolicy(policy.trajectories) },
  );
}

function fromStatePolicy(policy: StatePolicy) {
  return {
    stateNames: [...policy.names],
    contentMediaTypes: [...policy.mediaTypes],
    keepLast: BigInt(policy.keepLast),
    keepEvery: policy.keepEvery,
    olderThan: fromNanos(policy.olderThan),
    includeTagged: !policy.keepTagged,
    includeBranchPoints: !policy.keepBranchPoints,
    includeTerminal: !policy.keepTerminal,
  };
}

function fromTrajectoryPolicy(policy: TrajectoryPolicy) {
  return {
    statuses: policy.statuses.map(fromStatus),
    labels: Object.fromEntries(policy.labels),
    keepLast: BigInt(policy.keepLast),
    olderThan: fromNanos(policy.olderThan),
    includeTagged: !policy.keepTagged,
    onBranches: OnBranches[policy.onBranches],
  };
}

function fromNanos(nanos: bigint): Duration {
  return create(DurationSchema, { seconds: nanos / 1_000_000_000n, nanos: Number(nanos % 1_000_000_000n) });
}

const policyBytes = sizerOf(StoredRetentionPolicySchema);

/** Methods of stored policies (S15). */
export const storedPolicyMethods: Methods<
  typeof RetentionService,
  'setRetentionPolicy' | 'listRetentionPolicies' | 'deleteRetentionPolicy'
> = {
  async setRetentionPolicy({ name, policy, interval }, { app, caller }) {
    const given = { name, policy: toPolicy(policy), intervalMs: toMillis(required(interval, 'interval')) };
    return { retentionPolicy: toMessage(await app.store.setRetentionPolicy(caller.namespace, given)) };
  },

  /** Lists policies by name, in the order of bytes. */
  async listRetentionPolicies(request, { app, caller }) {
    const args = pageArgsOf({ app, caller }, RetentionService.method.listRetentionPolicies, request);
    const page = await pageByKey<StoredPolicy, StoredRetentionPolicy, string>(args, {
      fetch: (rows) => app.store.listRetentionPolicies(caller.namespace, rows),
      keyOf: ({ name }) => name,
      readKey: ([name]) => name!,
      show: toMessage,
      bytesOf: policyBytes,
    });
    return { retentionPolicies: page.items, nextPageToken: page.nextPageToken };
  },

  async deleteRetentionPolicy({ name }, { app, caller }) {
    await app.store.deleteRetentionPolicy(caller.namespace, name);
    return {};
  },
};

function toMessage({ name, policy, intervalMs, last, ...times }: StoredPolicy): StoredRetentionPolicy {
  return messageOf(StoredRetentionPolicySchema, {
    name,
    policy: fromPolicy(policy),
    interval: fromMillis(intervalMs),
    createTime: fromInstant(times.createTime),
    updateTime: fromInstant(times.updateTime),
    dueTime: fromInstant(times.dueTime),
    lastExecution: last && toExecution(last),
  });
}

function toExecution({ startTime, endTime, removed, error }: PastExecution) {
  return create(RetentionExecutionSchema, {
    startTime: fromInstant(startTime),
    endTime: fromInstant(endTime),
    totals: removed,
    errorReason: error?.reason ?? '',
    errorMessage: error?.message ?? '',
  });
}
