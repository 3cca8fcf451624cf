/** Calls as code that a person can copy: in TypeScript, Python, and for a shell. */

/** A value of a request. Integers of 64 bits are bigints. */
export type Value = string | number | bigint | boolean | readonly Value[] | { readonly [name: string]: Value };

/** A unary call, as the page sends it. */
export interface Call {
  readonly service: 'trajectories' | 'runs' | 'rollouts';
  /** In camel case, as in the TypeScript client. */
  readonly rpc: string;
  readonly request: Readonly<Record<string, Value>>;
}

/** The same program in several languages. */
export interface Code {
  readonly TypeScript: string;
  readonly Python: string;
  readonly CLI: string;
}

/** Where the server is: its URL. */
type Url = Pick<URL, 'origin' | 'host'>;

const MODULES: Readonly<Record<Call['service'], string>> = {
  trajectories: 'trajectory_service',
  runs: 'run_service',
  rollouts: 'rollout_service',
};

/** Returns programs that make a call. */
export function codeOf(call: Call, { origin, host }: Url): Code {
  const { service, rpc, request } = call;
  const method = rpc.charAt(0).toUpperCase() + rpc.slice(1);
  const module = MODULES[service];
  const stub = `${module.replace(/(?:^|_)(\w)/g, (_, letter: string) => letter.toUpperCase())}`;
  const fields = Object.entries(request).map(([name, value]) => `    ${snakeCase(name)}=${python(value)},\n`);
  return {
    TypeScript: `import { connectClient } from 'anabranch/client';

const client = connectClient({ address: ${quoted(host)} });
await client.${service}.${rpc}(${typeScript(request)});
client.close();
`,
    Python: `import grpc
from anabranch.v1.${module}_pb2 import ${method}Request
from anabranch.v1.${module}_pb2_grpc import ${stub}Stub

stub = ${stub}Stub(grpc.insecure_channel(${quoted(host)}))
stub.${method}(${method}Request(
${fields.join('')}))
`,
    CLI: `${curl(call, origin)}\n`,
  };
}

/** Returns programs that continue a branch: restore its state, and append a step. */
export function continuationOf(trajectoryId: string, nextStep: bigint, { origin, host }: Url): Code {
  const id = quoted(trajectoryId);
  const step = { stepNumber: nextStep, actions: [{ content: { text: 'right' } }], reward: 1 };
  return {
    TypeScript: `import { connectClient, openWriter } from 'anabranch/client';

const client = connectClient({ address: ${quoted(host)} });
const trajectoryId = ${id};
const { step } = await client.trajectories.getStep({ trajectoryId, stepNumber: ${nextStep - 1n}n });
// Restore your environment from step.states, then play from step ${nextStep} on. If the step has no state,
// getCheckpoint() returns the last one before it.
const writer = await openWriter(client, { trajectoryId });
await writer.append({ actions: [{ content: { text: 'right' } }], reward: 1 });
await writer.close();
client.close();
`,
    Python: `import anabranch as ab

client = ab.connect(${quoted(host)})
branch = client.trajectory(id=${id}, resume="must")
checkpoint = branch.rewind()
# Restore your environment from checkpoint, then play from step branch.next_step on. If step ${nextStep - 1n} has no
# state, rewind() continues after the last one before it that has, in another branch.
branch.step(action="right", reward=1.0)
branch.flush()
`,
    CLI: `anabranch steps ${trajectoryId} --address ${host}
${curl({ service: 'trajectories', rpc: 'appendStep', request: { trajectoryId, step } }, origin)}
`,
  };
}

function curl({ service, rpc, request }: Call, origin: string): string {
  const [method, module] = [rpc.charAt(0).toUpperCase() + rpc.slice(1), MODULES[service]];
  const name = module.replace(/(?:^|_)(\w)/g, (_, letter: string) => letter.toUpperCase());
  const body = json(request).replaceAll("'", "'\\''");
  return `curl -s ${origin}/anabranch.v1.${name}/${method} -H 'content-type: application/json' -d '${body}'`;
}

function typeScript(value: Value): string {
  if (typeof value === 'string') return quoted(value);
  if (typeof value === 'bigint') return `${value}n`;
  if (Array.isArray(value)) return `[${value.map(typeScript).join(', ')}]`;
  if (!isFields(value)) return String(value);
  const fields = Object.entries(value).map(([name, each]) => {
    return `${/^[a-z]\w*$/i.test(name) ? name : quoted(name)}: ${typeScript(each)}`;
  });
  return fields.length === 0 ? '{}' : `{ ${fields.join(', ')} }`;
}

function python(value: Value): string {
  if (typeof value === 'string') return quoted(value);
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (Array.isArray(value)) return `[${value.map(python).join(', ')}]`;
  if (!isFields(value)) return String(value);
  return `{${Object.entries(value)
    .map(([name, each]) => `${quoted(name)}: ${python(each)}`)
    .join(', ')}}`;
}

/** JSON as Connect reads it: integers of 64 bits are strings, and a mask is one text. */
function json(value: Value, name = ''): string {
  if (typeof value === 'string') return quoted(value);
  if (typeof value === 'bigint') return `"${value}"`;
  if (Array.isArray(value)) return `[${value.map((each) => json(each)).join(', ')}]`;
  if (!isFields(value)) return String(value);
  if (name === 'updateMask' && Array.isArray(value.paths)) return quoted(value.paths.join());
  return `{${Object.entries(value)
    .map(([key, each]) => `${quoted(key)}: ${json(each, key)}`)
    .join(', ')}}`;
}

function isFields(value: Value): value is Readonly<Record<string, Value>> {
  return typeof value === 'object' && !Array.isArray(value);
}

/** A string as all three languages read it. Characters that can hide what the code does are escaped. */
function quoted(text: string): string {
  return JSON.stringify(text.toWellFormed()).replace(
    /[\u007f-\u00a0\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

function snakeCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
