import { create } from '@bufbuild/protobuf';
import {
  RetentionExecutionSchema,
  RetentionService,
  type StoredRetentionPolicy,
  StoredRetentionPolicySchema,
} from '../../../gen/es/anabranch/v1/retention_service_pb.js';
import { parseTagName } from '../../domain/ids.ts';
import type { PastExecution, StoredPolicy } from '../../domain/retention_policies.ts';
import { messageOf } from '../answer/message.ts';
import { pageByKey } from '../answer/page.ts';
import { sizerOf } from '../answer/size.ts';
import { fromMillis, toMillis } from '../convert/duration.ts';
import { required } from '../convert/required.ts';
import { fromInstant } from '../convert/values.ts';
import type { Methods } from '../method.ts';
import { pageArgsOf } from '../request/page_token.ts';
import { fromPolicy, toPolicy } from './policy.ts';

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
    const args = pageArgsOf(caller, RetentionService.method.listRetentionPolicies, request);
    const page = await pageByKey<StoredPolicy, StoredRetentionPolicy, string>(args, {
      fetch: (rows) => app.store.listRetentionPolicies(caller.namespace, rows),
      keyOf: ({ name }) => name,
      readKey: ([name = '']) => parseTagName(name, 'page_token'),
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
