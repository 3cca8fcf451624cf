import { expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { makeStep, newState, sha256, stateRef, wordStep } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { describeStore } from './on_store.ts';
import { endBranch, readWhole, refusalOf, Scene } from './scene.ts';
import { dumpNamespace } from './sql.ts';

const STATE = newState('a secret of one namespace');
const PAGE = { limit: 100, after: undefined };

/** A namespace with a row of every kind. */
async function tenant(scene: Scene): Promise<{ root: Trajectory; child: Trajectory }> {
  const root = await scene.create({ taskId: 'T', name: 'n', labels: new Map([['k', 'v']]) }, key('shared'));
  await scene.append(root, [makeStep(0n, { states: [stateRef(STATE)], reward: 1 }), wordStep(1n, 'mine')], {
    states: [STATE],
  });
  const child = await scene.branch(root, 0n);
  await scene.store.setTag(scene.namespace, root.id, 'best', 0n, undefined);
  return { root, child };
}

function key(requestId: string) {
  return { rpc: 'CreateTrajectory', requestId, requestDigest: sha256('request') };
}

describeStore('namespaces', (on) => {
  /** Every call of the contract that names a resource, made from another namespace with all that the owner knows. */
  function attempts(store: Store, stranger: Scene, { root, child }: { root: Trajectory; child: Trajectory }) {
    const { namespace, caller } = stranger;
    const { tree } = root.ref;
    const lineage = [{ key: root.ref.key, from: 0n, to: 2n }];
    const open = {
      trajectoryId: root.id,
      uid: root.uid,
      writerId: 'w',
      takeOverEpoch: 0n,
      expectedNextStepNumber: undefined,
    };
    const attached = {
      trajectoryId: root.id,
      uid: root.uid,
      writerEpoch: undefined,
      stepNumber: 1n,
      name: 'env',
      digest: STATE.digest,
      mediaType: '',
      data: STATE.data,
    };
    const range = { from: 0n, to: 9n, maxSteps: 9, maxBytes: 1e6 };
    return {
      sees: {
        getTrajectory: [store.getTrajectory(namespace, root.id), undefined],
        listTrajectories: [store.listTrajectories(namespace, {}, PAGE), []],
        listByParent: [store.listTrajectories(namespace, { parentId: root.id }, PAGE), []],
        listByTree: [store.listTrajectories(namespace, { treeId: root.id }, PAGE), []],
        listTree: [store.listTree(namespace, tree, PAGE), []],
        branchTrajectories: [
          store.branchTrajectories(caller, [endBranch(root), endBranch(child)], {
            ...key('shared'),
            rpc: 'BranchTrajectories',
          }),
          0,
        ],
        readGains: [store.readGains(namespace, tree, [tree]), new Map()],
        readTreeTags: [store.readTreeTags(namespace, tree, [tree]), new Map()],
        getLineage: [store.getLineage(namespace, child.ref), []],
        readSteps: [store.readSteps(namespace, tree, lineage, range, 'FULL'), []],
        readEncodedSteps: [store.readEncodedSteps(namespace, tree, lineage, range, 'FULL'), []],
        readOutlines: [store.readOutlines(namespace, tree, lineage, 0n, 9), []],
        searchSteps: [
          store.searchSteps(namespace, [{ tree, key: tree, from: 0n, to: 9n }], { text: 'a', limit: 9 }),
          [],
        ],
        readStepSeries: [
          store.readStepSeries(namespace, [{ tree, lineage }], {
            value: { of: 'REWARD' },
            maxPoints: 8,
            stretchSteps: 1n,
          }),
          [{ stepNumbers: [], values: [], stretchSteps: expect.anything() }],
        ],
        listSteps: [
          store.listSteps(
            namespace,
            { of: { tree, lineage } },
            { by: 'NUMBER', descending: false },
            { ...PAGE, maxBytes: 1e6 },
            'FULL',
          ),
          { steps: [], isCut: false },
        ],
        listStepsOfTask: [
          store.listSteps(
            namespace,
            { of: { taskId: 'T' } },
            { by: 'REWARD', descending: true },
            { ...PAGE, maxBytes: 1e6 },
            'FULL',
          ),
          { steps: [], isCut: false },
        ],
        findCheckpoint: [store.findCheckpoint(namespace, tree, lineage, 9n, []), undefined],
        listStepStates: [store.listStepStates(namespace, tree, lineage, { name: 'env', from: 0n, limit: 9 }), []],
        findStates: [store.findStates(namespace, [STATE.digest], true), []],
      },
      refused: {
        branchTrajectory: [stranger.branch(root, 0n), 'TRAJECTORY_NOT_FOUND'],
        branchAtTag: [stranger.branch(root, 'best'), 'TRAJECTORY_NOT_FOUND'],
        updateTrajectory: [store.updateTrajectory(namespace, root.id, { name: 'taken' }), 'TRAJECTORY_NOT_FOUND'],
        deleteTrajectory: [store.deleteTrajectory(namespace, root.id, 'CASCADE'), 'TRAJECTORY_NOT_FOUND'],
        openForAppend: [store.openForAppend(caller, open), 'TRAJECTORY_NOT_FOUND'],
        append: [stranger.append(root, [wordStep(2n, 'x')]), 'TRAJECTORY_NOT_FOUND'],
        appendWithUid: [stranger.append(root, [wordStep(2n, 'x')], { uid: root.uid }), 'TRAJECTORY_NOT_FOUND'],
        replay: [stranger.append(root, [wordStep(1n, 'mine')]), 'TRAJECTORY_NOT_FOUND'],
        seal: [stranger.seal(root), 'TRAJECTORY_NOT_FOUND'],
        attachState: [store.attachState(caller, attached), 'TRAJECTORY_NOT_FOUND'],
        readState: [store.readState(namespace, STATE.digest, 0), 'STATE_NOT_FOUND'],
        setTag: [store.setTag(namespace, root.id, 'mine', 0n, undefined), 'TRAJECTORY_NOT_FOUND'],
        getTag: [store.getTag(namespace, root.id, 'best'), 'TRAJECTORY_NOT_FOUND'],
        listTags: [store.listTags(namespace, root.id, PAGE), 'TRAJECTORY_NOT_FOUND'],
        deleteTag: [store.deleteTag(namespace, root.id, 'best'), 'TRAJECTORY_NOT_FOUND'],
      },
    };
  }

  it('N1: no call of the contract ever reads or changes anything of another namespace', async () => {
    const owner = on.scene();
    const stranger = on.scene();
    const owned = await tenant(owner);
    const before = await dumpNamespace(on.sql, owner.namespace);
    const { sees, refused } = attempts(on.store, stranger, owned);
    const seen = Object.entries(sees).map(async ([call, [result, nothing]]) => {
      expect([call, await result]).toEqual([call, nothing]);
    });
    const refusals = Object.entries(refused).map(async ([call, [result, reason]]) => {
      const error = await refusalOf(result as Promise<unknown>);
      expect([call, error.reason]).toEqual([call, reason]);
    });
    await Promise.all([...seen, ...refusals]);
    expect(await dumpNamespace(on.sql, owner.namespace)).toBe(before);
    expect(await dumpNamespace(on.sql, stranger.namespace)).toBe('');
  });

  it('N1: a step of one namespace cannot refer to the state of another, not even by its digest', async () => {
    const [owner, stranger] = [on.scene(), on.scene()];
    await tenant(owner);
    const made = await stranger.create();
    const step = makeStep(0n, { states: [stateRef(STATE)] });
    expect((await refusalOf(stranger.append(made, [step]))).reason).toBe('STATE_NOT_FOUND');
    expect((await refusalOf(stranger.create({ root: step }))).reason).toBe('STATE_NOT_FOUND');
  });

  it('N1: two namespaces may use the same ids, names, keys and states, and deletion in one leaves the other unchanged', async () => {
    const [one, other] = [on.scene(), on.scene()];
    const { root } = await tenant(one);
    const twin = await other.create({ id: root.id, taskId: 'T', name: 'n' }, key('shared'));
    expect(twin.ref.key).not.toBe(root.ref.key);
    await other.append(twin, [makeStep(0n, { states: [stateRef(STATE)] })], { states: [STATE] });
    await other.store.setTag(other.namespace, twin.id, 'best', 0n, undefined);
    const before = await dumpNamespace(on.sql, one.namespace);
    await other.delete(twin, 'CASCADE');
    await collectUnused(on.store);
    expect(await dumpNamespace(on.sql, one.namespace)).toBe(before);
    expect((await readWhole(on.store, one.namespace, STATE.digest)).toString()).toBe('a secret of one namespace');
  });

  it('N1: namespaces that differ in one character are distinct', async () => {
    const { namespace } = on.scene();
    const scenes = [namespace, namespace.replaceAll('-', ''), `${namespace}-`, `0${namespace}`].map(
      (name) => new Scene(on.store, name),
    );
    for (const scene of scenes) await scene.create({ name: scene.namespace });
    for (const scene of scenes) {
      const listed = await on.store.listTrajectories(scene.namespace, {}, PAGE);
      expect(listed.map(({ name }) => name)).toEqual([scene.namespace]);
    }
  });
});
