import { randomUUID } from 'node:crypto';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import { expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { AppendEntrySchema, AppendResult } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { AnabranchError } from '../../src/domain/errors.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import { outsideSql } from '../store/sql.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { describeApp } from './on_app.ts';

type Entry = MessageInitShape<typeof AppendEntrySchema>;

describeApp('AppendBatch', (on) => {
  it('W14: the most entries, with every kind of result at once; as a replay, all that were stored are duplicates', async () => {
    const scene = on.scene();
    const ids = await Promise.all(Array.from({ length: 10 }, async () => (await scene.create()).id));
    const [fenced, sealed, tagged] = ids as [string, string, string];
    (await scene.open({ id: fenced }, { writerId: 'other' })).abandon();
    await scene.write({ id: sealed }, [], { status: 'COMPLETED', message: '' });
    const root = await scene.createWith(['a', 'b']);
    const [made, branch] = [randomUUID(), randomUUID()];
    const kinds: readonly (readonly [string, Entry])[] = [
      ['WRITER_FENCED', { trajectoryId: fenced, steps: [word(0, 'x')] }],
      ['WRITER_FENCED', { trajectoryId: fenced, writerId: 'mine', steps: [word(0, 'x')] }],
      ['', { trajectoryId: fenced, writerId: 'mine', takeOverEpoch: 1n, steps: [word(0, 'x')] }],
      ['TRAJECTORY_NOT_FOUND', { trajectoryId: randomUUID(), steps: [word(0, 'x')] }],
      ['TRAJECTORY_NOT_FOUND', { trajectoryId: tagged, uid: randomUUID(), steps: [word(0, 'x')] }],
      ['WRITER_FENCED', { trajectoryId: sealed, steps: [word(0, 'x')] }],
      ['TRAJECTORY_SEALED', { trajectoryId: sealed, writerEpoch: 1n, steps: [word(0, 'x')] }],
      ['', { trajectoryId: tagged, steps: [word(0, 'x')], tags: [{ name: 'best', stepNumber: 0n }] }],
      ['STEP_CONFLICT', { trajectoryId: tagged, steps: [word(0, 'other')] }],
      ['STEP_GAP', { trajectoryId: tagged, steps: [word(1, 'y'), word(3, 'z')] }],
      ['STATE_NOT_FOUND', { trajectoryId: tagged, steps: [{ ...word(1, 'y'), states: [{ digest: '0'.repeat(64) }] }] }],
      ['INVALID_REQUEST', { trajectoryId: tagged, steps: [{ ...word(1, 'y'), infoJson: '{' }] }],
      ['INVALID_REQUEST', { trajectoryId: tagged }],
      ['INVALID_REQUEST', { trajectoryId: tagged, takeOverEpoch: 0n, steps: [word(1, 'y')] }],
      ['INVALID_REQUEST', { trajectoryId: tagged, writerId: 'w', writerEpoch: 0n, steps: [word(1, 'y')] }],
      ['INVALID_REQUEST', { trajectoryId: tagged, steps: [word(1, 'y')], tags: [{ name: 't', stepNumber: 0n }] }],
      ['', { trajectoryId: tagged, steps: [word(1, 'y')], seal: { status: Status.FAILED, message: 'gave up' } }],
      ['', { trajectoryId: made, ...creating(made), writerId: 'w', steps: [word(0, 'x')] }],
      ['TRAJECTORY_EXISTS', { trajectoryId: root.id, ...creating(root.id) }],
      ['', { ...branching(branch, root.id, 1n), steps: [word(2, 'c')] }],
      ['BRANCH_POINT_BEYOND_END', { ...branching(randomUUID(), root.id, 2n) }],
    ];
    const rest = ids.slice(3);
    const plain = Array.from({ length: LIMITS.batchEntries - kinds.length }, (_, i): Entry => {
      const number = Math.floor(i / rest.length);
      return { trajectoryId: rest[i % rest.length]!, steps: [word(number, `${i}`)] };
    });
    const entries = [...kinds.map(([, entry]) => entry), ...plain];
    const { results } = await scene.rpc.appendBatch({ entries });
    expect(results).toHaveLength(LIMITS.batchEntries);
    expect(results.map(reasonOf)).toEqual([...kinds.map(([reason]) => reason), ...plain.map(() => '')]);
    expect(results[2]).toMatchObject({ epoch: 2n, nextStepNumber: 1n, duplicateSteps: 0n });
    expect(results[7]).toMatchObject({ uid: (await scene.now({ id: tagged })).uid, nextStepNumber: 1n });
    expect(results[7]?.epoch).toBeUndefined();
    expect(results[17]).toMatchObject({ epoch: 1n, nextStepNumber: 1n });
    expect(await scene.words({ id: branch })).toEqual(['a', 'b', 'c']);
    expect(await scene.now({ id: tagged })).toMatchObject({ status: 'FAILED', nextStepNumber: 2n });
    expect(results.slice(-rest.length).map((result) => result.nextStepNumber)).toContain(
      BigInt(Math.ceil(plain.length / rest.length)),
    );

    const again = await scene.rpc.appendBatch({ entries });
    const repeated = again.results.filter((_, i) => reasonOf(results[i]!) === '');
    expect(new Set(repeated.map(({ duplicateSteps, error }) => error?.reason ?? duplicateSteps))).toEqual(
      new Set([1n]),
    );
  });

  it('W14: an error has the code, the reason, the metadata and the field of the entry', async () => {
    const scene = on.scene();
    const { id } = await scene.createWith(['a']);
    (await scene.open({ id }, { writerId: 'x'.repeat(128), takeOverEpoch: 1n })).abandon();
    const { results } = await scene.rpc.appendBatch({
      entries: [
        { trajectoryId: id, steps: [word(1, 'b')] },
        { trajectoryId: id, writerEpoch: 2n, steps: [word(1, 'b'), { ...word(2, 'c'), actions: [{ content: {} }] }] },
      ],
    });
    expect(results.map(({ error }) => error)).toMatchObject([
      {
        code: Code.FailedPrecondition,
        reason: 'WRITER_FENCED',
        message: expect.stringContaining('take_over_epoch 2'),
        metadata: { writer_id: 'x'.repeat(128), writer_epoch: '2' },
        field: '',
      },
      { code: Code.InvalidArgument, reason: 'INVALID_REQUEST', field: 'steps[1].actions[0].content' },
    ]);
    expect(results[0]?.error?.retryDelay).toBeUndefined();
  });

  it('W14, A1: without a database, each entry fails with the same error, which says when to retry', async () => {
    const down = new AnabranchError('DATABASE_UNAVAILABLE', 'gone');
    const app = on.app({}, wrappedStore(on.store, { append: () => Promise.reject(down) }));
    const scene = on.scene(app);
    const entries = await Promise.all([0, 1].map(async () => entryOf((await scene.create()).id)));
    const { results } = await scene.rpc.appendBatch({ entries });
    const error = { code: Code.Unavailable, reason: 'DATABASE_UNAVAILABLE', retryDelay: { seconds: 1n } };
    expect(results).toMatchObject([{ error }, { error }]);
    await app.close();
  });

  it('W14, W1: creates trajectories in one transaction, and apart from the others those that cannot be created', async () => {
    const calls: number[] = [];
    const { store } = on;
    const app = on.app(
      {},
      wrappedStore(store, {
        appendToNew: (batches) => {
          calls.push(batches.length);
          return store.appendToNew(batches);
        },
      }),
    );
    const scene = on.scene(app);
    const ids = Array.from({ length: 64 }, () => randomUUID());
    const send = (of: readonly string[]) =>
      scene.rpc.appendBatch({ entries: of.map((id) => ({ ...entryOf(id), ...creating(id) })) });
    expect((await send(ids)).results.map(reasonOf)).toEqual(ids.map(() => ''));
    expect(calls).toEqual([64]);
    const taken = (await scene.create()).id;
    const others = ids.map((id, i) => (i === 40 ? taken : i % 2 === 0 ? id : randomUUID()));
    expect((await send(others)).results.map(reasonOf)).toEqual(
      ids.map((_, i) => (i === 40 ? 'TRAJECTORY_EXISTS' : '')),
    );
    expect(calls.length).toBeLessThan(20);
    expect(await scene.words({ id: others[1]! })).toEqual(['x']);
    await app.close();
  });

  it('W14, W1: an entry that is rejected creates nothing, and the next one of its trajectory can create it', async () => {
    const scene = on.scene();
    const [a, b, c, branch] = [randomUUID(), randomUUID(), randomUUID(), randomUUID()];
    const source = await scene.createWith(['a']);
    const kinds: readonly (readonly [string, Entry])[] = [
      ['STEP_GAP', { trajectoryId: a, ...creating(a), steps: [word(1, 'x')] }],
      ['TRAJECTORY_NOT_FOUND', { trajectoryId: a, steps: [word(0, 'x')] }],
      [
        'STATE_NOT_FOUND',
        { ...entryOf(b), ...creating(b), steps: [{ ...word(0, 'x'), states: [{ digest: '0'.repeat(64) }] }] },
      ],
      ['', { ...entryOf(b), ...creating(b), writerId: 'w' }],
      ['WRITER_FENCED', { trajectoryId: b, ...creating(b), steps: [word(1, 'y')] }],
      ['', { trajectoryId: b, writerEpoch: 1n, steps: [word(1, 'y')] }],
      ['', { trajectoryId: c, ...creating(c), steps: [word(0, 'x')], tags: [{ name: 't', stepNumber: 0n }] }],
      ['STEP_GAP', { ...branching(branch, source.id, 0n), steps: [word(2, 'c')] }],
    ];
    const entries = kinds.map(([, entry]) => entry);
    expect((await scene.rpc.appendBatch({ entries })).results.map(reasonOf)).toEqual(kinds.map(([reason]) => reason));
    expect(await scene.words({ id: b })).toEqual(['x', 'y']);
    expect((await scene.rpc.listTags({ trajectoryId: c, name: 't' })).tags).toMatchObject([{ stepNumber: 0n }]);
    for (const id of [a, branch]) expect(await on.store.getTrajectory(scene.caller.namespace, id)).toBeUndefined();
    const again = [
      { ...entryOf(a), ...creating(a) },
      { ...branching(branch, source.id, 0n), steps: [word(1, 'c')] },
    ];
    expect((await scene.rpc.appendBatch({ entries: again })).results.map(reasonOf)).toEqual(['', '']);
    expect(await scene.words({ id: branch })).toEqual(['a', 'c']);
  });

  it('W14, W1, W7: messages at once that create the same trajectories, in opposite orders, store each entry once', async () => {
    const scene = on.scene();
    for (let round = 0; round < 3; round += 1) {
      const ids = Array.from({ length: 12 }, () => randomUUID());
      const states = ids.map((_, i) => ({ name: 's', data: Buffer.alloc(5000, `${round} ${i >> 1} `) }));
      const entries = ids.map((id, i): Entry => {
        const steps = [
          { ...word(0, 'x'), states: [states[i]!] },
          { ...word(1, 'y'), states: [states[11 - i]!] },
        ];
        return { trajectoryId: id, ...creating(id), steps };
      });
      const left = Array.from({ length: 6 }, (_, i) => (i % 2 === 0 ? entries : entries.toReversed()));
      for (let tries = 0; left.length > 0; tries += 1) {
        expect(tries).toBeLessThan(20);
        const answers = await Promise.all(
          left.splice(0).map(async (each) => [each, (await scene.rpc.appendBatch({ entries: each })).results] as const),
        );
        for (const [sent, results] of answers) {
          const again = sent.filter((_, i) => reasonOf(results[i]!) === 'DATABASE_UNAVAILABLE');
          expect(results.map(reasonOf).filter((reason) => reason !== '' && reason !== 'DATABASE_UNAVAILABLE')).toEqual(
            [],
          );
          if (again.length > 0) left.push(again);
        }
      }
      for (const id of ids) expect(await scene.words({ id })).toEqual(['x', 'y']);
    }
  });

  if (on.engine === 'sqlite') return; // one transaction writes at a time

  it('W14, W1: an entry fails in a moment if another transaction creates its trajectory, and delays no other', async () => {
    const scene = on.scene();
    const [held, free] = [randomUUID(), randomUUID()];
    const other = await scene.create();
    const sql = await outsideSql(on.database);
    await sql.rows('begin');
    await sql.rows(`insert into trajectories select (jsonb_populate_record(t, jsonb_build_object('id', '${held}', 'key', -t.key, 'tree', -t.key))).*
      from trajectories as t where t.id = '${other.id}'`);
    const entries = [held, free].map((id) => ({ ...entryOf(id), ...creating(id) }));
    const begun = performance.now();
    const { results } = await scene.rpc.appendBatch({ entries: [...entries, entryOf(other.id)] });
    expect(results.map(reasonOf)).toEqual(['DATABASE_UNAVAILABLE', '', '']);
    expect(results[0]?.error?.retryDelay).toBeDefined();
    expect(performance.now() - begun).toBeLessThan(5000);
    await sql.rows('rollback');
    await sql.close();
    expect((await scene.rpc.appendBatch({ entries })).results).toMatchObject([
      { duplicateSteps: 0n },
      { duplicateSteps: 1n },
    ]);
  });
});

function word(number: number, text: string) {
  return { stepNumber: BigInt(number), actions: [{ content: { text } }] };
}

function entryOf(trajectoryId: string) {
  return { trajectoryId, steps: [word(0, 'x')] };
}

function creating(trajectoryId: string) {
  return { create: { trajectory: { trajectoryId, requestId: trajectoryId } } };
}

function branching(branchId: string, trajectoryId: string, stepNumber: bigint) {
  return { trajectoryId: branchId, create: { branch: { branchId, requestId: branchId, trajectoryId, stepNumber } } };
}

function reasonOf({ error }: AppendResult): string {
  return error?.reason ?? '';
}
