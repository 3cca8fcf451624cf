import {
  clearField,
  clone,
  create,
  type DescMethod,
  fromJson,
  isFieldSet,
  type MessageInitShape,
} from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { createDigestOf, idempotencyKeyOf, tokenBindingOf } from '../../src/service/request/digest.ts';
import vectors from './request_digests.json' with { type: 'json' };

const { createTrajectory, listTrajectories } = TrajectoryService.method;
const { listRuns } = RunService.method;
const CALLER = { namespace: 'here', actor: 'tester' };

function digestOf<M extends DescMethod>(method: M, request: MessageInitShape<M['input']>): string | undefined {
  const message = create(method.input, request) as never;
  return idempotencyKeyOf(method, message)?.requestDigest;
}

const METHODS: Readonly<Record<string, DescMethod>> = {
  CreateTrajectory: createTrajectory,
  CreateRollouts: RolloutService.method.createRollouts,
};

describe('ID1: the digest of a request', () => {
  it.each(vectors)('equals its test vector: $rpc ($what)', ({ rpc, request, digest }) => {
    const method = METHODS[rpc]!;
    const message = fromJson(method.input, { requestId: 'r', ...request } as never) as never;
    expect(idempotencyKeyOf(method, message)).toEqual({ rpc, requestId: 'r', requestDigest: digest });
  });

  it('exists only for requests with an id, and does not include the id', () => {
    expect(digestOf(createTrajectory, { name: 'a' })).toBe(undefined);
    const digests = ['r', 's'].map((requestId) => digestOf(createTrajectory, { requestId, name: 'a' }));
    expect(digests[0]).toBe(digests[1]);
  });

  it('ignores unset fields, and the order of a map', () => {
    const request = { requestId: 'r', labels: { a: '1', b: '2' } };
    const digest = digestOf(createTrajectory, request);
    expect(digestOf(createTrajectory, { ...request, name: '', metadataJson: '' })).toBe(digest);
    expect(digestOf(createTrajectory, { ...request, labels: { b: '2', a: '1' } })).toBe(digest);
  });

  it.each<[string, MessageInitShape<typeof createTrajectory.input>, MessageInitShape<typeof createTrajectory.input>]>([
    ['values of one field', { name: 'a' }, { name: 'b' }],
    ['fields of one value', { name: 'a' }, { taskId: 'a' }],
    ['an empty message and none', { root: {} }, {}],
    [
      'an empty text that is set and none',
      { root: { actions: [{ content: { text: '' } }] } },
      { root: { actions: [{}] } },
    ],
    ['orders of a list', { root: { actions: [{ type: 'a' }, {}] } }, { root: { actions: [{}, { type: 'a' }] } }],
    ['0 and -0', { root: { reward: 0 } }, { root: { reward: -0 } }],
    ['NaN and infinity', { root: { reward: Number.NaN } }, { root: { reward: Infinity } }],
    ['bytes', dataOf(1), dataOf(2)],
  ])('distinguishes %s', (_what, one, other) => {
    const [first, second] = [one, other].map((request) => digestOf(createTrajectory, { ...request, requestId: 'r' }));
    expect(first).not.toBe(second);
  });
});

describe('W1: the digest of the request that creates a trajectory', () => {
  const { branchTrajectory } = TrajectoryService.method;
  const [all] = vectors.filter(({ rpc, what }) => rpc === 'CreateTrajectory' && what === 'all');

  it('includes every field except the request id and if_exists', () => {
    const schema = createTrajectory.input;
    const request = fromJson(schema, { requestId: 'r', scoredMetrics: ['m'], ifExists: 2, ...all!.request } as never);
    const unset = schema.fields.filter((field) => !isFieldSet(request, field)).map(({ name }) => name);
    expect(unset).toEqual([]);
    const digest = createDigestOf(createTrajectory, request);
    const without = schema.fields.filter((field) => {
      const other = clone(schema, request);
      clearField(other, field);
      return createDigestOf(createTrajectory, other) === digest;
    });
    expect(without.map(({ name }) => name)).toEqual(['request_id', 'if_exists']);
  });

  it('equals its test vector', () => {
    const request = fromJson(createTrajectory.input, all!.request as never);
    expect(createDigestOf(createTrajectory, request)).toBe(
      'df1c2a4fa835d0f859a06c79b3f0bc36a921905efbed7b1f7cb446d44e4ddb3f',
    );
  });

  it('distinguishes the RPCs', () => {
    const id = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a';
    const root = create(createTrajectory.input, { trajectoryId: id, name: 'a', taskId: id });
    const branch = create(branchTrajectory.input, { trajectoryId: id, tag: 'a', branchId: id });
    expect(createDigestOf(createTrajectory, root)).not.toBe(createDigestOf(branchTrajectory, branch));
  });
});

describe('the binding of tokens', () => {
  const bound = (request: MessageInitShape<typeof listTrajectories.input>, caller = CALLER) =>
    tokenBindingOf(caller, listTrajectories, create(listTrajectories.input, request));

  it('is the query without its page', () => {
    expect(bound({ taskId: 'a', pageSize: 3, pageToken: 'x' })).toBe(bound({ taskId: 'a' }));
    expect(bound({ statuses: [Status.FAILED, Status.RUNNING, Status.FAILED] })).toBe(
      bound({ statuses: [Status.RUNNING, Status.FAILED] }),
    );
  });

  it('differs for another filter, namespace, RPC or row key', () => {
    const bindings = [
      bound({}),
      bound({ name: 'a' }),
      bound({ taskId: 'a' }),
      bound({}, { ...CALLER, namespace: 'b' }),
    ];
    bindings.push(tokenBindingOf(CALLER, listRuns, create(listRuns.input)));
    const all = create(listTrajectories.input);
    bindings.push(...[1n, 2n].map((key) => tokenBindingOf(CALLER, listTrajectories, all, key)));
    expect(new Set(bindings).size).toBe(bindings.length);
    expect(bound({}, { ...CALLER, actor: 'another' })).toBe(bound({}));
  });
});

function dataOf(byte: number): MessageInitShape<typeof createTrajectory.input> {
  return { root: { states: [{ data: new Uint8Array([byte]) }] } };
}
