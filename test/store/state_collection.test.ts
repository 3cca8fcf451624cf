import { randomBytes } from 'node:crypto';
import { expect, it } from 'vitest';
import type { StateRows, StatesEngine } from '../../src/store/sql/log/engine.ts';
import { collectStates } from '../../src/store/sql/upkeep/state/collection.ts';
import { dose } from '../support/dose.ts';
import { makeStep, newState, sha256, stateRef, textObservation, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { putState, readWhole } from './scene.ts';
import { countRows } from './sql.ts';

const KIB = 1024;

const CHUNK = 256 * KIB;

describeStore('collecting states', (on) => {
  /** Makes all rows of the namespace this many hours older. */
  async function age(namespace: string, hours: number): Promise<void> {
    for (const [table, column] of [
      ['states', 'renew_time'],
      ['state_uploads', 'renew_time'],
    ] as const) {
      const older = on.sql.earlier(column, hours * 3600);
      await on.sql.rows(`update ${table} set ${column} = ${older} where namespace = '${namespace}'`);
    }
  }

  async function collectAll(ttlHours = 24): Promise<number> {
    let all = 0;
    for (let n = -1; n !== 0; all += n) n = await on.store.collectStates(ttlHours, 1000);
    return all;
  }

  const here = async (namespace: string, digests: readonly string[]) =>
    (await on.store.findStates(namespace, digests, false)).map(({ digest }) => digest);

  it('S2: a state without steps lives for the configured time after its last renewal', async () => {
    const { namespace } = on.scene();
    const small = await putState(on.store, namespace, Buffer.from('small'));
    const large = await putState(on.store, namespace, randomBytes(3 * CHUNK));
    await age(namespace, 23);
    await collectAll(24);
    expect(await here(namespace, [small, large])).toEqual([small, large]);
    await age(namespace, 2);
    await collectAll(26);
    expect(await here(namespace, [small, large])).toEqual([small, large]);
    expect(await collectAll(24)).toBe(2);
    expect(await here(namespace, [small, large])).toEqual([]);
    expect(Object.values(await countRows(on.sql, namespace)).every((n) => n === 0)).toBe(true);
  });

  it('S2: the row key of a deleted state is not given to another one', async () => {
    const { namespace } = on.scene();
    const keyOf = async (text: string) => {
      await putState(on.store, namespace, Buffer.from(text));
      const [row] = await on.sql.rows(`select max(key) as key from states where namespace = '${namespace}'`);
      return Number(row?.key);
    };
    const deleted = await keyOf('deleted');
    await age(namespace, 25);
    expect(await collectAll()).toBe(1);
    expect(await keyOf('later')).toBeGreaterThan(deleted);
  });

  it('S2, S6: it is renewed by another upload, and by a query that asks for renewal', async () => {
    const { namespace } = on.scene();
    const texts = ['put again', 'renewed', 'only looked at', 'left alone'];
    const digests: string[] = [];
    for (const text of texts) digests.push(await putState(on.store, namespace, Buffer.from(text)));
    await age(namespace, 30);
    await putState(on.store, namespace, Buffer.from('put again'));
    await on.store.findStates(namespace, [digests[1] as string, sha256('unknown')], true);
    await on.store.findStates(namespace, [digests[2] as string], false);
    await collectAll();
    expect(await here(namespace, digests)).toEqual(digests.slice(0, 2));
  });

  it('S2: a state with a step is never collected: as state, in a content, attached, or only inherited', async () => {
    const scene = on.scene();
    const [asState, inContent] = [newState('state'), newState('content')];
    const attached = newState('attached'.repeat(1000));
    const content = { kind: 'state', digest: inContent.digest, mediaType: '', size: 7 } as const;
    const root = await scene.create();
    const step = makeStep(0n, { states: [stateRef(asState)], observations: [textObservation('', { content })] });
    await scene.append(root, [step, wordStep(1n, 'own')], { states: [asState, inContent] });
    await scene.store.attachState(scene.caller, {
      trajectoryId: root.id,
      uid: undefined,
      writerEpoch: undefined,
      stepNumber: 0n,
      name: 'agent',
      digest: attached.digest,
      mediaType: '',
      data: attached.data,
    });
    const child = await scene.branch(root, 0n);
    await scene.delete(root, 'KEEP_SHARED');
    await age(scene.namespace, 1000);
    await collectAll();
    const digests = [asState.digest, inContent.digest, attached.digest];
    expect(await here(scene.namespace, digests)).toEqual(digests);
    await scene.delete(child);
    await collectAll();
    expect(await here(scene.namespace, digests)).toEqual([]);
  });

  it('S2: it is collected after its last step: not after the first of two, also if one state has two references', async () => {
    const scene = on.scene();
    const state = newState('twice');
    const one = await scene.create();
    const two = await scene.create();
    const step = makeStep(0n, { states: [stateRef(state, 'a'), stateRef(state, 'b')] });
    await scene.append(one, [step], { states: [state] });
    await scene.append(two, [step]);
    await scene.delete(one);
    await age(scene.namespace, 30);
    await collectAll();
    expect(await here(scene.namespace, [state.digest])).toEqual([state.digest]);
    await scene.delete(two);
    await collectAll();
    expect(await here(scene.namespace, [state.digest])).toEqual([]);
  });

  it('S2, B2: states of trimmed steps are collected, those of shared steps stay', async () => {
    const scene = on.scene();
    const states = Array.from({ length: 4 }, (_, i) => newState(`s${i}`));
    const root = await scene.create();
    await scene.append(
      root,
      states.map((state, i) => makeStep(BigInt(i), { states: [stateRef(state)] })),
      { states },
    );
    const low = await scene.branch(root, 0n);
    const high = await scene.branch(root, 2n);
    await scene.delete(root, 'KEEP_SHARED');
    await age(scene.namespace, 30);
    await collectAll();
    const digests = states.map(({ digest }) => digest);
    expect(await here(scene.namespace, digests)).toEqual(digests.slice(0, 3));
    await scene.delete(high);
    await collectAll();
    expect(await here(scene.namespace, digests)).toEqual(digests.slice(0, 1));
    await scene.delete(low);
    await collectAll();
    expect(await here(scene.namespace, digests)).toEqual([]);
  });

  it('S2: one call collects a limited number, and returns it', async () => {
    await collectAll(0);
    const { namespace } = on.scene();
    for (let i = 0; i < 7; i += 1) await putState(on.store, namespace, Buffer.from(`${i}`));
    await age(namespace, 30);
    expect(await on.store.collectStates(24, 3)).toBe(3);
    expect(await on.store.collectStates(24, 3)).toBe(3);
    expect(await on.store.collectStates(24, 3)).toBe(1);
    expect(await on.store.collectStates(24, 3)).toBe(0);
  });

  it('S2: the rest of a broken upload is collected too; an upload in progress stays', async () => {
    const { namespace } = on.scene();
    const bytes = randomBytes(3 * CHUNK);
    const broken = on.store.putState(namespace);
    await broken.write(bytes.subarray(0, CHUNK));
    await broken.write(bytes.subarray(CHUNK, 2 * CHUNK));
    await age(namespace, 30);
    const underWay = on.store.putState(namespace);
    for (let at = 0; at < bytes.length; at += CHUNK) await underWay.write(bytes.subarray(at, at + CHUNK));
    await collectAll();
    await underWay.finish();
    expect((await readWhole(on.store, namespace, sha256(bytes))).equals(bytes)).toBe(true);
    expect(await countRows(on.sql, namespace)).toMatchObject({ states: 1, state_chunks: 3 });
  });

  it('S2, D5: an upload whose chunks were collected does not finish as a state without them', async () => {
    const { namespace } = on.scene();
    const bytes = randomBytes(3 * CHUNK);
    const slow = on.store.putState(namespace);
    await slow.write(bytes.subarray(0, CHUNK));
    await slow.write(bytes.subarray(CHUNK, 2 * CHUNK));
    await age(namespace, 30);
    await collectAll();
    const finished = await (async () => {
      await slow.write(bytes.subarray(2 * CHUNK));
      return slow.finish();
    })().then(
      () => true,
      () => false,
    );
    if (finished) expect((await readWhole(on.store, namespace, sha256(bytes))).equals(bytes)).toBe(true);
    else expect(await here(namespace, [sha256(bytes)])).toEqual([]);
  });

  it('S2: a state that is put again while another server collects the former one lives for the configured time', async () => {
    const { namespace } = on.scene();
    const data = Buffer.from('put again');
    const digest = await putState(on.store, namespace, data);
    await age(namespace, 30);
    const { engine } = on.store as unknown as { readonly engine: StatesEngine };
    const outwaitReferrers = async () => {
      // After the candidates were selected.
      await collectAll();
      expect(await here(namespace, [digest])).toEqual([]);
      await putState(on.store, namespace, data);
      return true;
    };
    const stateRows: StateRows = Object.assign(Object.create(engine.stateRows), { outwaitReferrers });
    const racing: StatesEngine = Object.assign(Object.create(engine), { stateRows });
    expect(await collectStates(racing, 24, 1000)).toBe(0);
    expect(await here(namespace, [digest])).toEqual([digest]);
  });

  it('S2: an append that refers to a state during its collection either has it or is refused', async () => {
    const scene = on.scene();
    let kept = 0;
    for (let round = 0; round < dose(20, 40); round += 1) {
      const state = newState(`round ${round}`);
      await putState(on.store, scene.namespace, state.data);
      const made = await scene.create();
      const step = makeStep(0n, { states: [stateRef(state)] });
      const collecting = on.store.collectStates(0, 1000);
      const appended = await scene.append(made, [step]).then(
        () => true,
        (error: { reason?: string }) => {
          expect(error.reason).toBe('STATE_NOT_FOUND');
          return false;
        },
      );
      await collecting;
      await on.store.collectStates(0, 1000);
      if (!appended) continue;
      kept += 1;
      expect(await readWhole(on.store, scene.namespace, state.digest)).toEqual(Buffer.from(state.data));
    }
    expect(kept).toBeGreaterThanOrEqual(0);
  });

  it('S2: bytes sent inline during the deletion and collection of the same state are stored', async () => {
    const scene = on.scene();
    const state = newState('comes and goes');
    let holder = await scene.create();
    const step = makeStep(0n, { states: [stateRef(state)] });
    await scene.append(holder, [step], { states: [state] });
    for (let round = 0; round < 30; round += 1) {
      const next = await scene.create();
      await Promise.all([
        scene.delete(holder).then(() => on.store.collectStates(0, 1000)),
        on.store.collectStates(0, 1000),
        scene.append(next, [step], { states: [state] }),
      ]);
      expect(await readWhole(on.store, scene.namespace, state.digest)).toEqual(Buffer.from(state.data));
      holder = next;
    }
  });
});
