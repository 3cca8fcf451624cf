import { createHash } from 'node:crypto';

/** One of this many steps is a checkpoint, so that states are covered. */
const CHECKPOINT_EVERY = 8n;

/** A step that no other writer, life or number of the run could have created. */
export interface MadeStep {
  readonly infoJson: string;
  readonly states: { readonly name: string; readonly data: Uint8Array }[];
  readonly content: string;
}

export function makeStep(writer: string, number: bigint): MadeStep {
  const infoJson = JSON.stringify({ writer, number: String(number) });
  if (number % CHECKPOINT_EVERY !== 0n) return { infoJson, states: [], content: contentOf(infoJson, undefined) };
  const data = Buffer.from(`the state of ${writer} after step ${number}`);
  const digest = createHash('sha256').update(data).digest('hex');
  return { infoJson, states: [{ name: 'env', data }], content: contentOf(infoJson, digest) };
}

/** The identity of a step: its writer, its number, and its state. */
export function contentOf(infoJson: string, digest: string | undefined): string {
  return digest === undefined ? infoJson : `${infoJson} ${digest}`;
}
