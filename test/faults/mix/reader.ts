import { setTimeout as delay } from 'node:timers/promises';
import { ConnectError } from '@connectrpc/connect';
import type { Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { StepOrder } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { reasonOf } from '../../../src/client/index.ts';
import { isTransient } from '../../../src/client/retry.ts';
import { ATTACHED, digestOf, hasState, type Node, ownerOf, stateOf, textOf } from './forest.ts';
import { count, type Mix } from './mix.ts';

const DEADLINE = { timeoutMs: 20_000 };

/** What is certain about a trajectory when a read starts. */
interface Known {
  readonly node: Node;
  readonly end: number;
  readonly deletion: Node['deletion'];
  readonly sealed: boolean;
  /** Steps with an attached state, by owner. */
  readonly attached: ReadonlyMap<Node, ReadonlySet<number>>;
}

type Read = (mix: Mix, known: Known) => Promise<string[]>;

const READS: Readonly<Record<string, Read>> = {
  async ReadSteps({ client }, known) {
    const wrong: string[] = [];
    let next = 0;
    for await (const message of client.trajectories.readSteps({ trajectoryId: known.node.id }, DEADLINE)) {
      for (const step of message.steps) {
        wrong.push(...faultsOf(known, step, next, message.trajectoryId));
        next += 1;
      }
    }
    if (next < known.end) wrong.push(`${next} steps, of ${known.end} acked`);
    return wrong;
  },

  async ReadStates({ client }, known) {
    const pieces = new Map<number, Buffer[]>();
    const request = { range: { trajectoryId: known.node.id, name: 'env' } };
    for await (const message of client.states.readStates(request, DEADLINE)) {
      for (const { stepNumber, data } of message.pieces) {
        const all = pieces.get(Number(stepNumber)) ?? [];
        pieces.set(Number(stepNumber), [...all, Buffer.from(data)]);
      }
    }
    return numbers(known.end)
      .filter(hasState)
      .filter((n) => !Buffer.concat(pieces.get(n) ?? []).equals(stateOf(ownerOf(known.node, n), n, 'env')))
      .map((n) => `no state of step ${n}, or another`);
  },

  async GetState({ client, random }, known) {
    const stepNumber = random.pick(numbers(known.end).filter(hasState));
    const reference = { trajectoryId: known.node.id, stepNumber: BigInt(stepNumber) };
    const chunks: Uint8Array[] = [];
    for await (const { chunk } of client.states.getState({ reference }, DEADLINE)) chunks.push(chunk);
    const expected = stateOf(ownerOf(known.node, stepNumber), stepNumber, 'env');
    return Buffer.concat(chunks).equals(expected) ? [] : [`no state of step ${stepNumber}, or another`];
  },

  async GetStep({ client, random }, known) {
    const stepNumber = random.between(0, known.end - 1);
    const request = { trajectoryId: known.node.id, stepNumber: BigInt(stepNumber) };
    const { step, trajectoryId } = await client.trajectories.getStep(request, DEADLINE);
    return faultsOf(known, step!, stepNumber, trajectoryId);
  },

  async GetCheckpoint({ client, random }, known) {
    const atOrBefore = random.between(0, known.end - 1);
    const request = { trajectoryId: known.node.id, atOrBefore: BigInt(atOrBefore), stateNames: ['env'] };
    const { step, trajectoryId } = await client.trajectories.getCheckpoint(request, DEADLINE);
    const expected = hasState(atOrBefore) ? atOrBefore : atOrBefore - 1;
    const wrong = faultsOf(known, step!, expected, trajectoryId);
    for (const state of step!.states) {
      const bytes = stateOf(ownerOf(known.node, expected), expected, state.name);
      if (state.data === undefined || !bytes.equals(state.data)) wrong.push(`bytes of state ${state.name}`);
    }
    return wrong;
  },

  async ListSteps({ client }, known) {
    const wrong: string[] = [];
    let next = 0;
    let pageToken = '';
    do {
      const request = { trajectoryId: known.node.id, order: StepOrder.NUMBER, pageSize: 7, pageToken };
      const page = await client.trajectories.listSteps(request, DEADLINE);
      for (const { step, trajectoryId } of page.steps) {
        const owner = ownerOf(known.node, next);
        if (Number(step!.stepNumber) !== next) wrong.push(`step ${step!.stepNumber} in place of ${next}`);
        if (trajectoryId !== owner.id) wrong.push(`step ${next} of ${trajectoryId}`);
        wrong.push(...stateFaultsOf(known, step!, next));
        next += 1;
      }
      pageToken = page.nextPageToken;
    } while (pageToken !== '');
    if (next < known.end) wrong.push(`${next} steps, of ${known.end} acked`);
    return wrong;
  },

  async GetLineage({ client }, known) {
    const { segments } = await client.trajectories.getLineage({ trajectoryId: known.node.id }, DEADLINE);
    const found = segments.map(({ trajectoryId, startStepNumber }) => `${trajectoryId} from ${startStepNumber}`);
    const expected: string[] = [];
    for (let node: Node | undefined = known.node; node !== undefined; node = node.parent) {
      expected.unshift(`${node.id} from ${node.branchPoint + 1}`);
    }
    return found.join() === expected.join() ? [] : [`lineage ${found.join()}, not ${expected.join()}`];
  },

  async GetTrajectory({ client }, known) {
    const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId: known.node.id }, DEADLINE);
    const wrong: string[] = [];
    if (Number(trajectory!.nextStepNumber) < known.end) wrong.push(`an end of ${trajectory!.nextStepNumber}`);
    if (trajectory!.parentId !== (known.node.parent?.id ?? '')) wrong.push(`the parent ${trajectory!.parentId}`);
    if (known.sealed && trajectory!.sealTime === undefined) wrong.push('no seal');
    return wrong;
  },
};

/**
 * Reads trajectories at random, until the mix is stopped, and checks that every read that is answered OK is complete.
 */
export async function read(mix: Mix): Promise<void> {
  while (!mix.stopped) {
    const node = pickNode(mix);
    if (node !== undefined) await readOnce(mix, node, mix.random.pick(Object.keys(READS)));
    // Yields to others while there is nothing to read yet.
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** Makes every kind of read of every trajectory that was created. */
export async function readAll(mix: Mix): Promise<void> {
  const nodes = mix.nodes.filter(({ created }) => created).values();
  const readRepeatedly = async () => {
    for (const node of nodes) for (const rpc of Object.keys(READS)) await readOnce(mix, node, rpc);
  };
  await Promise.all(Array.from({ length: 8 }, readRepeatedly));
}

/** Half of the time one that is being deleted, else mostly one that is not. */
function pickNode({ random, nodes }: Mix): Node | undefined {
  const {
    none = [],
    begun = [],
    answered = [],
  } = Object.groupBy(
    nodes.filter((node) => node.created),
    ({ deletion }) => deletion,
  );
  const chance = random.next();
  const wanted = chance < 0.5 ? begun : chance < 0.95 ? none : answered;
  const from = wanted.length > 0 ? wanted : none;
  return from.length === 0 ? undefined : random.pick(from);
}

async function readOnce(mix: Mix, node: Node, rpc: string): Promise<void> {
  const known = knownOf(node);
  const result: unknown = await READS[rpc]!(mix, known).catch((error: unknown) => error);
  const violation = (what: string) => mix.violations.push(`${rpc} of ${node.id}: ${what}`);
  if (Array.isArray(result)) {
    count(mix, `${rpc}, complete`);
    if (known.deletion === 'answered') violation('was answered after its deletion');
    for (const what of result) violation(String(what));
    return;
  }
  const reason = reasonOf(result);
  if (reason === 'TRAJECTORY_NOT_FOUND' || reason === 'TRAJECTORY_DELETED') {
    count(mix, `${rpc}, deleted`);
    if (node.deletion === 'none') violation(`${reason}, but no deletion was started`);
  } else if (reason === 'INTERNAL' || !(result instanceof ConnectError) || !isTransient(result)) {
    violation(String(result));
  } else {
    // The server is being killed or started: leaves the processor to it.
    mix.unansweredReads += 1;
    await delay(50);
  }
}

function knownOf(node: Node): Known {
  const attached = new Map(lineageOf(node).map((owner) => [owner, new Set(owner.attached)]));
  return { node, end: node.end, deletion: node.deletion, sealed: node.sealed, attached };
}

function lineageOf(node: Node): Node[] {
  return node.parent === undefined ? [node] : [...lineageOf(node.parent), node];
}

/** Returns the violations of a step, which should have this number. */
function faultsOf(known: Known, step: Step, stepNumber: number, trajectoryId: string): string[] {
  const owner = ownerOf(known.node, stepNumber);
  const wrong = stateFaultsOf(known, step, stepNumber);
  if (Number(step.stepNumber) !== stepNumber) wrong.push(`step ${step.stepNumber} in place of ${stepNumber}`);
  if (trajectoryId !== owner.id) wrong.push(`step ${stepNumber} is of ${trajectoryId}, not of ${owner.id}`);
  const text = step.observations[0]?.content?.text;
  if (text !== textOf(owner, stepNumber)) wrong.push(`step ${stepNumber} says "${text}"`);
  return wrong;
}

/** States attached before the read started must be there. States attached meanwhile may be there. */
function stateFaultsOf({ node, attached }: Known, step: Step, stepNumber: number): string[] {
  const owner = ownerOf(node, stepNumber);
  const names = new Set(step.states.map(({ name }) => name));
  const wrong = step.states
    .filter(({ name, digest }) => digest !== digestOf(stateOf(owner, stepNumber, name)))
    .map(({ name, digest }) => `state ${name} of step ${stepNumber} is ${digest}`);
  if (hasState(stepNumber) && !names.has('env')) wrong.push(`step ${stepNumber} has no state`);
  if (attached.get(owner)?.has(stepNumber) && !names.has(ATTACHED)) {
    wrong.push(`step ${stepNumber} lacks the state that was attached to it`);
  }
  return wrong;
}

function numbers(end: number): number[] {
  return Array.from({ length: end }, (_, i) => i);
}
