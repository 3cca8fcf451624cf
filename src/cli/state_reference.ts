/** Arguments that name a state. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { StateReferenceSchema } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { type AnabranchClient, resolveStep } from '../client/index.ts';
import { CliError } from './context.ts';
import { parseStepReference } from './step_reference.ts';

/** A state by its digest, or a state of a step. The name is empty for the default one. */
export type StateArgument =
  | { readonly digest: string }
  | { readonly step: ReturnType<typeof parseStepReference>; readonly name: string };

const DIGEST = /^[0-9a-f]{64}$/;
/** A tag may contain slashes, so a name can follow a number only. */
const NAMED = /^([^@]*@\d+)\/(.+)$/s;

/** Parses a digest, `TRAJECTORY@STEP`, `TRAJECTORY@STEP/NAME` or `TRAJECTORY@TAG`. Throws CliError. */
export function parseState(argument: string, text: string): StateArgument {
  if (DIGEST.test(text)) return { digest: text };
  const [, before = text, name = ''] = NAMED.exec(text) ?? [];
  const step = text.includes('@') ? parseStepReference(before) : undefined;
  if (step?.at !== undefined) return { step, name };
  const expected =
    'a digest (64 lower-case hex characters), or a trajectory and a step, such as ID@200 or ID@200/agent';
  throw new CliError(`${argument} is "${text}": expected ${expected}.`, { exitCode: 2 });
}

/** The field of a request that names a state: `digest` or `reference`. */
export type StateAddress =
  | { readonly digest: string }
  | { readonly reference: MessageInitShape<typeof StateReferenceSchema> };

/** Looks up the tag if there is one. */
export async function addressOf(client: AnabranchClient, state: StateArgument): Promise<StateAddress> {
  if ('digest' in state) return state;
  const { step, name } = state;
  const { trajectoryId } = step;
  return { reference: { trajectoryId, stepNumber: await resolveStep(client, step), name } };
}
