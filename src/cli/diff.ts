import { toJsonString } from '@bufbuild/protobuf';
import { Command } from 'commander';
import { DiffStatesResponseSchema } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { columnsOf, paintFor } from './columns.ts';
import type { CliContext } from './context.ts';
import { differenceLines } from './diff_lines.ts';
import {
  addServerOptions,
  DEFAULT_ADDRESS,
  JSON_FORM,
  type ServerFlags,
  withServerOnExisting,
  write,
} from './server_access.ts';
import { addressOf, parseState } from './state_reference.ts';

interface DiffFlags extends ServerFlags {
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch diff ID@199 ID@200                  the state "env" of two steps
  anabranch diff ID@200/agent OTHER@200/agent   the state "agent" of two trajectories
  anabranch diff ID@fork DIGEST                 a tagged step, and a state by its SHA-256
  anabranch diff ID@1 ID@2 --json | jq -r .patchJson`;

/** Deadline of the comparison. Two states of 256 MiB take seconds. */
const DIFF_DEADLINE_MS = 120_000;

export function diffCommand(cli: CliContext): Command {
  const command = new Command('diff')
    .description('Compare two states: as JSON, or byte by byte if one of them is not JSON or has more than 4 MiB.')
    .argument('<A>', 'the first state: ID@STEP, ID@STEP/NAME or ID@TAG (without a NAME: env), or its digest')
    .argument('<B>', 'the state that is compared with it')
    .option('--json', 'print the response as JSON');
  return addServerOptions(command, `address of the server (default: ${DEFAULT_ADDRESS})`)
    .addHelpText('after', EXAMPLES)
    .action((one: string, other: string, flags: DiffFlags) => showDifference(cli, [one, other], flags));
}

async function showDifference(cli: CliContext, [one, other]: readonly [string, string], flags: DiffFlags) {
  const [state, otherState] = [parseState('A', one), parseState('B', other)];
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const address = await addressOf(client, otherState);
    const compared = 'digest' in address ? { otherDigest: address.digest } : { otherReference: address.reference };
    const request = { ...(await addressOf(client, state)), ...compared };
    const answer = await client.states.diffStates(request, { timeoutMs: DIFF_DEADLINE_MS });
    const options = { columns: columnsOf(cli), paint: paintFor(cli.stdout, cli.env) };
    const text = flags.json
      ? toJsonString(DiffStatesResponseSchema, answer, JSON_FORM)
      : differenceLines([one, other], answer, options).join('\n');
    await write(cli.stdout, `${text}\n`);
  });
}
