/** The answers to callers while the database is unreachable (A1). */
import { Code, ConnectError } from '@connectrpc/connect';
import { type AnabranchClient, reasonOf, retryDelayMs } from '../../../src/client/index.ts';

/** Maximal time of a caller without an answer, and of the server until it uses a database that is back. */
export const A1_MS = 5_000;
/** Allowance for a busy machine, which may be late to ask and to read the clock. */
export const MACHINE_MS = 1_500;

export interface Answer {
  readonly call: string;
  readonly ms: number;
  /** `OK`, or what was wrong with the answer as an answer to an outage; undefined if it was as promised. */
  readonly objection: string | undefined;
}

/** One call of each kind, all concurrently: unary and streaming, reads and writes. */
export function askAll(client: AnabranchClient, trajectoryId: string): Promise<Answer[]> {
  const { trajectories, states } = client;
  return Promise.all([
    ask('GetTrajectory', () => trajectories.getTrajectory({ trajectoryId })),
    ask('CreateTrajectory', () => trajectories.createTrajectory({ name: 'made while the database was away' })),
    ask('ListTrajectories', () => trajectories.listTrajectories({})),
    ask('SetTag', () => trajectories.setTag({ trajectoryId, name: 'away', stepNumber: 0n })),
    ask('PutState', () => states.putState(chunksOf(Buffer.from('a state of an outage')))),
    ask('ReadSteps', () => drain(trajectories.readSteps({ trajectoryId }))),
    ask('ReadSteps follow', () => drain(trajectories.readSteps({ trajectoryId, follow: true }))),
    ask('AppendSteps', () => drain(trajectories.appendSteps(openOf(trajectoryId)))),
  ]);
}

async function ask(call: string, make: () => Promise<unknown>): Promise<Answer> {
  const begun = performance.now();
  const answer = await make().then(
    () => undefined,
    (error: unknown) => error,
  );
  return { call, ms: performance.now() - begun, objection: objectionTo(answer) };
}

function objectionTo(answer: unknown): string | undefined {
  if (answer === undefined) return 'OK';
  if (!(answer instanceof ConnectError)) return String(answer);
  const description = `${Code[answer.code]} ${reasonOf(answer) ?? 'without a reason'}: ${answer.rawMessage}`;
  if (answer.code !== Code.Unavailable || reasonOf(answer) !== 'DATABASE_UNAVAILABLE') return description;
  return retryDelayMs(answer) === undefined ? `${description}, without RetryInfo` : undefined;
}

async function drain(messages: AsyncIterable<unknown>): Promise<void> {
  for await (const _ of messages);
}

async function* chunksOf(chunk: Uint8Array) {
  yield { header: {} };
  yield { chunk };
}

/** It fences no writer of another trajectory. */
async function* openOf(trajectoryId: string) {
  yield { open: { trajectoryId, writerId: 'asks during an outage' } };
}

/** Asks until a read and a write are answered; returns the time it took, and all answers meanwhile except OK. */
export async function untilServed(
  client: AnabranchClient,
  trajectoryId: string,
): Promise<{ ms: number; answers: Answer[] }> {
  const begun = performance.now();
  const failed: Answer[] = [];
  for (;;) {
    const answers = await Promise.all([
      ask('GetTrajectory', () => client.trajectories.getTrajectory({ trajectoryId })),
      ask('CreateTrajectory', () => client.trajectories.createTrajectory({ name: 'made after an outage' })),
    ]);
    const ms = performance.now() - begun;
    failed.push(...answers.filter(({ objection }) => objection !== 'OK'));
    if (answers.every(({ objection }) => objection === 'OK')) return { ms, answers: failed };
    if (ms > 10 * A1_MS)
      throw new Error(`the database is back, and the server has not found it for ${Math.round(ms)} ms`);
  }
}
