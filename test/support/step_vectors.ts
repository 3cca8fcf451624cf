import { readFileSync } from 'node:fs';
import path from 'node:path';
import type { Action, Content, Observation, StateRef, Step } from '../../src/domain/step.ts';
import { makeStep, textAction, textObservation } from './steps.ts';

/**
 * Another program made these vectors, from the description of the canonical form (W6) and of protobuf. Steps are stored
 * in these bytes: if a vector fails, the code is wrong, never the vector.
 */
interface Vector {
  readonly name: string;
  readonly step: VectorStep;
  /** The form whose SHA-256 is the digest. */
  readonly canonicalHex: string;
  readonly digest: string;
  /** The bytes that are stored. */
  readonly storedHex: string;
}
type VectorNumber = number | 'NaN' | 'Infinity' | '-Infinity' | '-0';
type VectorContent =
  | Exclude<Content, { kind: 'data' | 'tensor' }>
  | { kind: 'data'; dataHex: string; mediaType: string }
  | ({ kind: 'tensor'; dtype: string; shape: number[] } & ({ dataHex: string } | { digest: string }));
interface VectorStep {
  readonly stepNumber: string;
  readonly actions?: readonly (Partial<Omit<Action, 'content' | 'logprobs'>> & {
    content?: VectorContent;
    logprobs?: VectorNumber[];
  })[];
  readonly observations?: readonly (Partial<Omit<Observation, 'content'>> & { content?: VectorContent })[];
  readonly reward?: VectorNumber;
  readonly terminated?: boolean;
  readonly truncated?: boolean;
  readonly infoJson?: string;
  readonly metadataJson?: string;
  readonly metrics?: Readonly<Record<string, VectorNumber>>;
  readonly labels?: Readonly<Record<string, string>>;
  readonly startTime?: string;
  readonly endTime?: string;
  readonly states?: readonly Omit<StateRef, 'size'>[];
}

export const STEP_VECTORS = JSON.parse(
  readFileSync(path.join(import.meta.dirname, '../domain/step_digest_vectors.json'), 'utf8'),
) as readonly Vector[];

export function stepOf(vector: VectorStep): Step {
  const {
    stepNumber,
    actions = [],
    observations = [],
    reward,
    metrics = {},
    labels = {},
    startTime,
    endTime,
    states,
    ...rest
  } = vector;
  return makeStep(BigInt(stepNumber), {
    ...rest,
    actions: actions.map(({ content, logprobs = [], ...action }) => ({
      ...textAction(''),
      type: '',
      ...action,
      content: contentOf(content),
      logprobs: logprobs.map(Number),
    })),
    observations: observations.map(({ content, ...observation }) => ({
      ...textObservation(''),
      type: '',
      ...observation,
      content: contentOf(content),
    })),
    reward: reward === undefined ? undefined : Number(reward),
    metrics: new Map(Object.entries(metrics).map(([key, value]) => [key, Number(value)])),
    labels: new Map(Object.entries(labels)),
    startTime: startTime === undefined ? undefined : BigInt(startTime),
    endTime: endTime === undefined ? undefined : BigInt(endTime),
    states: (states ?? []).map((state) => ({ ...state, size: 0 })),
  });
}

function contentOf(content: VectorContent | undefined): Content | undefined {
  if (content?.kind === 'state') return { ...content, size: 0 };
  if (content === undefined || !('dataHex' in content)) return content;
  const { dataHex, ...others } = content;
  return { ...others, data: new Uint8Array(Buffer.from(dataHex, 'hex')) };
}
