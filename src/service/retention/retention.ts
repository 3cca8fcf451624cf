import { create } from '@bufbuild/protobuf';
import {
  ApplyRetentionResponseSchema,
  type PlanRetentionResponse,
  PlanRetentionResponseSchema,
  type RetentionItem,
  RetentionItemSchema,
  RetentionPin,
  type RetentionService,
  type RetentionPolicy as WirePolicy,
} from '../../../gen/es/anabranch/v1/retention_service_pb.js';
import type { Instant } from '../../domain/instant.ts';
import { addSizes, NOTHING, type Pin, type RemovedSize, type RetentionPart } from '../../domain/retention.ts';
import { collectFreed } from '../../stream/maintenance.ts';
import { fromInstant, toInstant } from '../convert/values.ts';
import type { Call, Methods } from '../method.ts';
import { toPolicy } from './policy.ts';

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
