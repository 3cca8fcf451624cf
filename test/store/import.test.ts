import { createHash, randomBytes } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import type { ArchivePart } from '../../src/domain/archive.ts';
import { AnabranchError } from '../../src/domain/errors.ts';
import { parseInstant } from '../../src/domain/instant.ts';
import type { NewState } from '../../src/domain/step.ts';
import { StepFrames } from '../../src/domain/step_codec/frames.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { ReadSlots } from '../../src/store/sql/kit/reading/slots.ts';
import { StepsDigest } from '../../src/store/sql/upkeep/archive/step_chunks.ts';
import { makeStep, newState, smallRef, stateRef } from '../support/steps.ts';
import { archivedLines, exported, imported } from './archived.ts';
import { collectUnused } from './collection.ts';
import { describeStore } from './on_store.ts';
import { RunScene } from './run_scene.ts';
import { putState } from './scene.ts';
import { stateOf } from './state_chains.ts';
import { expectVerified } from './verified.ts';

/** More than one part of an archive, and more than one transaction of an import. */
const PARTS = 2100;
/** All in one part. */
const STEPS = 60;

/** Steps of the first transaction. */
const WRITTEN = 2048;

describeStore('imports', (on) => {
  // Everything that the tests leave, at once.
  afterAll(() => expectVerified(on.store));

  /** A trajectory of this many steps with states, and a branch of it. */
  async function furnish(length = STEPS): Promise<{ scene: RunScene; root: Trajectory; branch: Trajectory }> {
    const scene = new RunScene(on.store);
    const root = await scene.create();
    const small = newState('small');
    const states = [0, 1].map((i) => stateOf(3, 5000, [i]));
    const steps = Array.from({ length }, (_, i) => {
      const own = i === 10 || i === length - 10 ? [stateRef(states[i === 10 ? 0 : 1]!, 'big')] : [];
      return makeStep(BigInt(i), { reward: i / 8, states: [...own, smallRef(small, 'env')] });
    });
    await scene.append(root, steps, { states });
    await scene.store.setTag(scene.namespace, root.id, 'best', 7n, undefined);
    const branchPoint = BigInt(Math.min(400, length - 20));
    const branch = await scene.branch(root, branchPoint);
    await scene.append(branch, [makeStep(branchPoint + 1n)]);
    return { scene, root, branch };
  }

  /** Exports and deletes what `furnish` has made, so that it can be imported again. */
  async function moved(
    length = STEPS,
  ): Promise<{ scene: RunScene; root: Trajectory; branch: Trajectory; parts: ArchivePart[] }> {
    const furnished = await furnish(length);
    const { scene, root } = furnished;
    const parts = await exported(scene.store, scene.namespace);
    await scene.delete(root, 'CASCADE');
    return { ...furnished, parts };
  }

  async function refusal(work: Promise<unknown>): Promise<AnabranchError> {
    const error: unknown = await work.then(
      () => undefined,
      (caught: unknown) => caught,
    );
    expect(error).toBeInstanceOf(AnabranchError);
    return error as AnabranchError;
  }

  const changed = (parts: readonly ArchivePart[], change: (text: string) => string): ArchivePart[] =>
    parts.map((part) => (part.kind === 'records' ? { ...part, text: change(part.text) } : part));

  it('V6: a trajectory with the same id and other steps is a conflict, and is not changed', async () => {
    const { scene, root, parts } = await moved();
    const other = await scene.createWith(['other'], { id: root.id });
    const error = await refusal(imported(scene.store, scene.namespace, parts));
    expect([error.reason, error.message]).toEqual(['IMPORT_CONFLICT', expect.stringContaining(root.id)]);
    expect(await scene.steps(other)).toHaveLength(1);
    await expectVerified(scene.store);
  });

  it('V6: a trajectory that has grown since is present', async () => {
    const { scene, root } = await furnish();
    const parts = await exported(scene.store, scene.namespace);
    await scene.append(root, [makeStep(BigInt(STEPS))]);
    expect(await imported(scene.store, scene.namespace, parts)).toMatchObject({ presentTrajectories: 2n });
    expect((await scene.get(root.id)).nextStepNumber).toBe(BigInt(STEPS + 1));
  });

  it('V6: a trajectory of which states were pruned, attached or restored since is present, and is not changed', async () => {
    const { scene, root } = await furnish();
    const parts = await exported(scene.store, scene.namespace);
    const prune = (names: readonly string[]) =>
      scene.store.pruneStates(scene.namespace, root.ref, [{ stepNumber: 10n, names, mediaTypes: [] }]);
    const changes = [
      () => prune(['big', 'env']),
      () => attach(scene, root, 'env', newState('small')),
      () => attach(scene, root, 'later', newState('later')),
      () => prune(['later']),
    ];
    let newest = parts;
    for (const change of changes) {
      await change();
      for (const archive of [parts, newest]) {
        const before = await scene.steps(root);
        expect(await imported(scene.store, scene.namespace, archive)).toMatchObject({
          trajectories: 0n,
          presentTrajectories: 2n,
          identicalTrajectories: 1n,
        });
        expect(await scene.steps(root)).toEqual(before);
      }
      newest = await exported(scene.store, scene.namespace);
      expect(await imported(scene.store, scene.namespace, newest)).toMatchObject({ identicalTrajectories: 2n });
    }
    await scene.delete(root, 'CASCADE');
    await imported(scene.store, scene.namespace, parts);
    const missing = await refusal(imported(scene.store, scene.namespace, newest));
    expect([missing.reason, missing.message]).toEqual(['IMPORT_CONFLICT', expect.stringContaining('another step 10')]);
  });

  it('V6: a run with the id of another one is a conflict', async () => {
    const scene = new RunScene(on.store);
    const { run } = await scene.make({});
    const parts = await exported(scene.store, scene.namespace);
    const later = (text: string) => text.replace(/("record":"run".*?"create_time":")\d{4}/, '$12001');
    const otherRun = await refusal(imported(scene.store, scene.namespace, changed(parts, later)));
    expect([otherRun.reason, otherRun.message]).toEqual(['IMPORT_CONFLICT', expect.stringContaining(run.id)]);
    expect(otherRun.message).toMatch(/differ in create_time \(.*, 2001-/);
  });

  it('V6: what is cut off is refused, has imported whole trajectories only, and can be completed', async () => {
    const { scene, root, branch, parts } = await moved(PARTS);
    for (let length = 0; length < parts.length; length += 1) {
      const error = await refusal(imported(scene.store, scene.namespace, parts.slice(0, length)));
      expect(error.reason).toBe('ARCHIVE_INVALID');
      if (await scene.isThere(root.id)) expect((await scene.get(root.id)).nextStepNumber).toBe(BigInt(PARTS));
      if (await scene.isThere(branch.id)) expect((await scene.get(branch.id)).nextStepNumber).toBe(402n);
    }
    await imported(scene.store, scene.namespace, parts);
    expect(archivedLines(await exported(scene.store, scene.namespace))).toEqual(archivedLines(parts));
    expect(await on.sql.rows('select * from trajectory_imports')).toEqual([]);
  });

  describe('of an archive that is damaged', () => {
    /** For all damage: what is refused changes nothing. */
    let few: Awaited<ReturnType<typeof moved>>;
    beforeAll(async () => {
      few = await moved();
    });

    /** Expects that the import succeeds after all refusals. Deletes what it stored, for the next test. */
    async function expectImported({ scene, root, parts }: typeof few): Promise<void> {
      expect(await imported(scene.store, scene.namespace, parts)).toMatchObject({ trajectories: 2n });
      await scene.delete(root, 'CASCADE');
    }

    it.each<[string, (part: ArchivePart) => ArchivePart]>([
      ['another version', (part) => edited(part, '"version":3', '"version":2')],
      ['another namespace', (part) => edited(part, /"namespace":"[^"]*"/, '"namespace":"other"')],
      ['another format', (part) => edited(part, 'anabranch-archive', 'tar')],
      ['a record that is no JSON', (part) => edited(part, '"record":"trajectory"', '"record":')],
      ['an unknown record', (part) => edited(part, '"record":"trajectory"', '"record":"thing"')],
      ['a value of another type', (part) => edited(part, /"writer_epoch":"\d+"/, '"writer_epoch":true')],
      ['a missing value', (part) => edited(part, /"writer_epoch":"\d+",/, '')],
      ['U+0000', (part) => edited(part, '"writer_id":""', '"writer_id":"\\u0000"')],
      ['a parent that comes later', (part) => edited(part, '"parent":null', '"parent":"x"')],
      ['a tag twice', (part) => tagged(part)],
      ['another digest of the steps', (part) => edited(part, /"steps_digest":"..../, '"steps_digest":"0000')],
      ['another status', (part) => edited(part, '"status":"RUNNING"', '"status":"FAILED"')],
      ['another end', (part) => edited(part, `"next_step_number":"${STEPS}"`, '"next_step_number":"5"')],
      ['a state with other bytes', (part) => (part.kind === 'state' ? { ...part, bytes: flipped(part.bytes) } : part)],
      ['a small state with other bytes', (part) => withSmall(part, (data) => flipped(data))],
      ['a small state that is large', (part) => withSmall(part, () => new Uint8Array(4096))],
      ['a flipped byte of a step', (part) => (part.kind === 'steps' ? { ...part, bytes: flipped(part.bytes) } : part)],
      [
        'a step twice',
        (part) => (part.kind === 'steps' ? { ...part, bytes: Buffer.concat([part.bytes, part.bytes]) } : part),
      ],
    ])('V6: %s is refused, and nothing of the trajectory is stored', async (_, change) => {
      const { scene, root, parts } = few;
      const error = await refusal(imported(scene.store, scene.namespace, parts.map(change)));
      expect([error.reason, error.message]).toEqual([
        'ARCHIVE_INVALID',
        expect.stringContaining('The archive is damaged'),
      ]);
      expect(await scene.isThere(root.id)).toBe(false);
      await expectImported(few);
    });

    it('V6: missing states and steps are refused', async () => {
      const { scene, parts } = few;
      await collectUnused(scene.store);
      for (const kind of ['state', 'small_states', 'steps'] as const) {
        const missing = parts.filter((part) => part.kind !== kind);
        expect((await refusal(imported(scene.store, scene.namespace, missing))).reason).toBe('ARCHIVE_INVALID');
      }
      await expectImported(few);
    });
  });

  it('V6: an import that another one of the same trajectory overtakes ends, and the other one completes', async () => {
    const { scene, root, parts } = await moved(PARTS);
    const lastSteps = parts.findLastIndex((part) => part.kind === 'steps' && part.trajectoryId === root.id);
    async function* overtaken(): AsyncGenerator<ArchivePart> {
      yield* parts.slice(0, lastSteps);
      expect(await scene.isThere(root.id)).toBe(false);
      await expectVerified(scene.store);
      await imported(scene.store, scene.namespace, parts);
      yield* parts.slice(lastSteps);
    }
    expect((await refusal(imported(scene.store, scene.namespace, overtaken()))).reason).toBe('IMPORT_SUPERSEDED');
    expect(archivedLines(await exported(scene.store, scene.namespace))).toEqual(archivedLines(parts));
  });

  it('V6, W3, W9: attached states that a step cannot have are refused', async () => {
    const { scene, parts } = await moved();
    const [state, mediaType] = [newState('attached'), 'x'.repeat(128)];
    const [attach_time, pruned_time] = ['2026-01-01T00:00:00.000000Z', '2026-01-02T00:00:00.000000Z'];
    const withNames = (names: readonly string[]) => {
      const states = names.map((name) => {
        const of = { name, digest: state.digest, media_type: mediaType, size: state.data.length, small: false };
        return { step_number: '0', ...of, attach_time, pruned_time };
      });
      let [line, digest] = ['', ''];
      return parts.flatMap((part): ArchivePart[] => {
        if (part.kind === 'steps' && part.firstStepNumber === 0n) {
          const ends: number[] = [];
          for (const frames = new StepFrames(part.bytes); frames.next(); ) ends.push(frames.to);
          const steps = new StepsDigest();
          const attached = states.map(({ name, digest }) => {
            const times = { attachTime: parseInstant(attach_time), prunedTime: parseInstant(pruned_time) };
            return { stepNumber: 0n, state: { name, digest, mediaType, size: state.data.length, ...times } };
          });
          steps.add({ first: 0n, bytes: part.bytes, ends, attached });
          digest = steps.finish();
          const record = { record: 'attached_states', trajectory: part.trajectoryId, states };
          return [{ kind: 'records', text: `${JSON.stringify(record)}\n` }, part];
        }
        if (part.kind !== 'records') return [part];
        const lines = part.text.split(/(?<=\n)/).map((each) => {
          if (each.startsWith('{"record":"trajectory",') && each.includes('"parent":null')) line = each;
          if (!each.startsWith('{"record":"trajectory_end"') || digest === '') return each;
          const { id } = JSON.parse(line) as { readonly id: string };
          const whole = createHash('sha256').update(line).update(digest).digest('hex');
          const end = { record: 'trajectory_end', id, steps_digest: digest, digest: whole };
          digest = '';
          return `${JSON.stringify(end)}\n`;
        });
        return [{ kind: 'records', text: lines.join('') }];
      });
    };
    const many = (count: number) => Array.from({ length: count }, (_, i) => `state ${String(i).padStart(3, '0')}`);
    const importing = (names: readonly string[]) => imported(scene.store, scene.namespace, withNames(names));
    expect((await refusal(importing(many(256)))).message).toContain('it has 257 states with the attached ones');
    expect((await refusal(importing(['env']))).message).toContain('two of its states have the same name');
    await importing(many(255));
    const archive = await exported(scene.store, scene.namespace);
    expect(
      archivedLines(archive)
        .join()
        .match(/"state \d{3}"/g),
    ).toHaveLength(255);
  });

  it('V6, A5: an import does not pause for its own writes', async () => {
    const { scene, parts } = await moved(PARTS);
    const { slots } = scene.store;
    const [take, wrote] = [vi.spyOn(slots, 'take'), vi.spyOn(slots as ReadSlots, 'wrote')];
    await imported(scene.store, scene.namespace, parts);
    const waiting = new Set<unknown>(take.mock.calls.map(([, writer]) => writer));
    const writing = new Set<unknown>(wrote.mock.calls.map(([writer]) => writer));
    expect(waiting.size).toBe(1);
    expect(writing).toEqual(waiting);
    expect([...waiting]).not.toEqual([undefined]);
    vi.restoreAllMocks();
  });

  it('V6: an import of a small trajectory that another one has stored meanwhile ends, and changes nothing', async () => {
    const scene = new RunScene(on.store);
    const root = await scene.createWith(['small']);
    const parts = await exported(scene.store, scene.namespace);
    await scene.delete(root);
    const lastSteps = parts.findLastIndex((part) => part.kind === 'steps');
    async function* overtaken(): AsyncGenerator<ArchivePart> {
      yield* parts.slice(0, lastSteps);
      await imported(scene.store, scene.namespace, parts);
      yield* parts.slice(lastSteps);
    }
    expect((await refusal(imported(scene.store, scene.namespace, overtaken()))).reason).toBe('IMPORT_SUPERSEDED');
    expect(archivedLines(await exported(scene.store, scene.namespace))).toEqual(archivedLines(parts));
  });

  it('V6: maintenance removes an import that was given up a day ago, and nothing younger', async () => {
    const { scene, root, parts } = await moved(PARTS);
    const begun = scene.store.importArchive(scene.namespace, stopped(parts));
    const lastSteps = parts.findLastIndex((part) => part.kind === 'steps' && part.trajectoryId === root.id);
    for (let i = 0; i <= lastSteps; i += 1) await begun.next();
    const rows = () => on.sql.rows(`select next_step_number from trajectories where namespace = '${scene.namespace}'`);
    // The first transaction is written while the import waits for more.
    await expect.poll(async () => (await rows()).map((row) => Number(row.next_step_number))).toEqual([WRITTEN]);
    while (await scene.store.purgeDeleted(500));
    expect(await rows()).toHaveLength(1);
    await on.sql.rows(`update trajectory_imports set renew_time = '2001-01-01T00:00:00.000000Z'`);
    while (await scene.store.purgeDeleted(500));
    expect(await rows()).toEqual([]);
    expect(await on.sql.rows('select * from trajectory_imports')).toEqual([]);
  });

  it('V5: a state that retention removes while it is exported is exported as pruned', async () => {
    const scene = new RunScene(on.store);
    const made = await scene.create();
    const states = [0, 1, 2].map((i) => newState(randomBytes(150 * 1024).toString('hex') + i));
    const large = randomBytes(900 * 1024);
    const digest = await putState(scene.store, scene.namespace, large);
    for (const [i, state] of states.entries())
      await scene.append(made, [makeStep(BigInt(i), { states: [stateRef(state, 'env')] })], { states: [state] });
    await scene.append(made, [
      makeStep(3n, {
        states: [{ name: 'env', digest, mediaType: '', size: large.length }, smallRef(newState('s'), 'a')],
      }),
    ]);
    const prune = async (stepNumber: bigint) => {
      await scene.store.pruneStates(scene.namespace, made.ref, [{ stepNumber, names: ['env'], mediaTypes: [] }]);
      await collectUnused(scene.store);
    };
    const parts: ArchivePart[] = [];
    for await (const part of scene.store.exportArchive(scene.namespace, { kind: 'namespace' })) {
      // Before its first byte, and between its pieces.
      if (part.kind === 'state' && part.digest === states[0]!.digest) await prune(1n);
      if (part.kind === 'state' && part.digest === digest && part.offset === 0) await prune(3n);
      parts.push(part);
    }
    expect(parts.some((part) => part.kind === 'state' && part.digest === states[1]!.digest)).toBe(false);
    expect(archivedLines(parts)).toContain(JSON.stringify({ record: 'state_left_out', digest }));
    const cut = parts.filter(
      ({ kind, ...part }) => kind !== 'records' || !('text' in part && /left_out"/.test(part.text)),
    );
    const before = (await scene.steps(made)).map(({ step }) => step);
    expect(before.map(({ states: [env] }) => env!.prunedTime !== undefined)).toEqual([false, true, false, true]);
    await scene.delete(made);
    expect((await refusal(imported(scene.store, scene.namespace, cut))).reason).toBe('ARCHIVE_INVALID');
    expect(await imported(scene.store, scene.namespace, parts)).toMatchObject({ trajectories: 1n, leftOut: [] });
    expect((await scene.steps(made)).map(({ step }) => step)).toEqual(before);
  });

  it('V5: a trajectory that is deleted during the export is left out with its branches, and listed', async () => {
    const { scene, root, branch } = await furnish(PARTS);
    const kept = await scene.createWith(['kept']);
    const parts: ArchivePart[] = [];
    for await (const part of scene.store.exportArchive(scene.namespace, { kind: 'namespace' })) {
      if (part.kind === 'steps' && part.firstStepNumber === 0n && part.trajectoryId === root.id) {
        await scene.delete(root, 'CASCADE');
      }
      parts.push(part);
    }
    expect(archivedLines(parts).at(-1)).toContain(`"left_out":["${root.id}","${branch.id}"]`);
    await scene.delete(kept);
    expect(await imported(scene.store, scene.namespace, parts)).toMatchObject({ leftOut: [root.id], trajectories: 1n });
    expect(await scene.isThere(kept.id)).toBe(true);
  });

  it('V6: states of a trajectory that is left out stay for later trajectories of the archive', async () => {
    const scene = new RunScene(on.store);
    const state = stateOf(3, 5000, [0]);
    const naming = (number: number) =>
      makeStep(BigInt(number), { states: number === 10 ? [stateRef(state, 'big')] : [] });
    const steps = Array.from({ length: 11 }, (_, i) => naming(i));
    const root = await scene.create();
    // Transactions of an import store up to 2,048 steps; the deletion is noticed after these.
    for (let first = 0; first < 8192; first += 1024) {
      const part = Array.from({ length: 1024 }, (_, i) => naming(first + i));
      await scene.append(root, part, { states: first === 0 ? [state] : [] });
    }
    const later = await scene.create();
    await scene.append(later, steps);
    const parts: ArchivePart[] = [];
    for await (const part of scene.store.exportArchive(scene.namespace, { kind: 'namespace' })) {
      if (part.kind === 'steps' && part.trajectoryId === root.id && part.firstStepNumber === 2048n)
        await scene.delete(root, 'CASCADE');
      parts.push(part);
    }
    await scene.delete(later);
    // Maintenance removes states without references, unless they were renewed within the hours given.
    async function* collected(): AsyncGenerator<ArchivePart> {
      for (const part of parts) {
        yield part;
        await scene.store.collectStates(1, 10_000);
      }
    }
    expect(await imported(scene.store, scene.namespace, collected())).toMatchObject({
      leftOut: [root.id],
      trajectories: 1n,
    });
    expect(await scene.steps(await scene.get(later.id))).toHaveLength(11);
  });
});

function attach(scene: RunScene, { id }: Trajectory, name: string, { digest, data }: NewState) {
  return scene.store.attachState(scene.caller, {
    trajectoryId: id,
    uid: undefined,
    writerEpoch: undefined,
    stepNumber: 10n,
    name,
    digest,
    mediaType: 'application/octet-stream',
    data,
  });
}

function edited(part: ArchivePart, from: string | RegExp, to: string): ArchivePart {
  return part.kind === 'records' ? { ...part, text: part.text.replace(from, to) } : part;
}

/** Repeats the tag of the trajectory, whose digest follows from its line. */
function tagged(part: ArchivePart): ArchivePart {
  if (part.kind !== 'records') return part;
  return edited(part, /"tags":\[(\{[^}]*\})\]/, '"tags":[$1,$1]');
}

function withSmall(part: ArchivePart, change: (data: Uint8Array) => Uint8Array): ArchivePart {
  if (part.kind !== 'small_states') return part;
  return { ...part, states: part.states.map(({ digest, data }) => ({ digest, data: change(data) })) };
}

/** Never ends, as a client that has stopped. */
async function* stopped(parts: readonly ArchivePart[]): AsyncGenerator<ArchivePart> {
  yield* parts;
  await new Promise(() => {});
}

function flipped(bytes: Uint8Array): Uint8Array {
  const copy = Buffer.from(bytes);
  copy[copy.length >> 1] = copy[copy.length >> 1]! ^ 0xff;
  return copy;
}
