import { createHash } from 'node:crypto';
import { clone, create } from '@bufbuild/protobuf';
import { type Step, StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';

/**
 * Steps with values that codecs, databases and JSON easily lose. The clients in other languages build the same steps by
 * themselves.
 */

/** A state too large to send inline: it must be uploaded first. */
export const PUT_STATE = noise(600 * 1024, 3);
/** As large as one inline state may be. */
export const INLINE_STATE = noise(512 * 1024, 2);
/** Content that the server stores as a state. */
export const SCREENSHOT = noise(20_000, 1);

/** Pseudo-random bytes, the same in every language: the upper byte of a linear congruential generator. */
export function noise(size: number, seed: number): Uint8Array {
  const bytes = new Uint8Array(size);
  let x = seed;
  for (let i = 0; i < size; i++) {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
    bytes[i] = x >>> 24;
  }
  return bytes;
}

/** The samples are hashed often. */
const digests = new WeakMap<Uint8Array, string>();

export function sha256(bytes: Uint8Array): string {
  const digest = digests.get(bytes) ?? createHash('sha256').update(bytes).digest('hex');
  digests.set(bytes, digest);
  return digest;
}

/** Steps 0 to 6. The state PUT_STATE must be uploaded before step 5. */
export function sampleSteps(): Step[] {
  return [root(), unicode(), numbers(), jsonAndTimes(), infinities(), states(), contents()];
}

function root(): Step {
  return create(StepSchema, {
    observations: [{ type: 'reset', content: { json: '{"z": 1,  "n":9007199254740993, "a":1.0}' } }],
  });
}

function unicode(): Step {
  return create(StepSchema, {
    stepNumber: 1n,
    actions: [
      {
        type: 'tool_call',
        name: 'écrire',
        callId: 'c1',
        content: { text: 'héllo 🌊 中文 e\u0301 \u202e\u2028 \\u0000 "\n\t' },
        tokenIds: [0, 2147483647, -1],
        logprobs: [-0.5, -Infinity, 0],
        promptTokenIds: [-2147483648, 128],
        keptTokens: 0,
      },
      { type: 'noop' },
    ],
    observations: [{ type: 'tool_result', callId: 'c1', isError: true, content: { text: '' } }, { type: 'silent' }],
    reward: 0,
    states: [{ name: 'env', data: utf8('état 1'), mediaType: 'text/plain; charset=utf-8' }],
  });
}

function numbers(): Step {
  return create(StepSchema, {
    stepNumber: 2n,
    reward: NaN,
    metrics: {
      nan: NaN,
      inf: Infinity,
      '-inf': -Infinity,
      zero: 0,
      negative_zero: -0,
      tiny: 5e-324,
      large: 1.7976931348623157e308,
      third: 1 / 3,
      'ключ 🔑': 9007199254740991,
    },
  });
}

function jsonAndTimes(): Step {
  return create(StepSchema, {
    stepNumber: 3n,
    actions: [{ type: 'code', content: { json: 'null' } }],
    reward: Infinity,
    infoJson: '{"b":[1.0,1E+2,-0],"a":"\\u00e9\\ud83c\\udf0a"}',
    metadataJson: '[]',
    startTime: { seconds: -1n, nanos: 999_999_999 },
    endTime: { seconds: 253402300799n, nanos: 1 },
  });
}

function infinities(): Step {
  const labels = { phase: 'träin', empty: '' };
  return create(StepSchema, { stepNumber: 4n, reward: -Infinity, terminated: true, truncated: true, labels });
}

function states(): Step {
  return create(StepSchema, {
    stepNumber: 5n,
    reward: 0.1,
    states: [
      { name: '', data: new Uint8Array() },
      { name: 'memory', data: INLINE_STATE, mediaType: 'application/octet-stream' },
      { name: 'put', digest: sha256(PUT_STATE), mediaType: 'application/x-put' },
    ],
  });
}

function contents(): Step {
  return create(StepSchema, {
    stepNumber: 6n,
    actions: [
      { type: 'upload', content: { data: new Uint8Array([0, 255, 0, 128]), mediaType: 'image/png' } },
      {
        type: 'reply',
        tokenIdsState: sha256(PUT_STATE),
        promptTokenIdsState: sha256(PUT_STATE),
        keptTokens: 2147483647,
      },
    ],
    observations: [
      { type: 'empty', content: { data: new Uint8Array(), mediaType: 'text/plain' } },
      { type: 'screenshot', content: { data: SCREENSHOT, mediaType: 'image/png' } },
      { type: 'named', content: { stateDigest: sha256(PUT_STATE), mediaType: 'application/x-put' } },
      { type: 'link', content: { uri: 'https://example.org/a?b=c#é', mediaType: 'text/html' } },
      {
        type: 'vector',
        content: { tensor: { dtype: '<f4', shape: [2], data: new Uint8Array([0, 0, 192, 63, 0, 0, 128, 255]) } },
      },
      { type: 'scalar', content: { tensor: { dtype: '|b1', data: new Uint8Array([1]) } } },
      { type: 'pixels', content: { tensor: { dtype: '|u1', shape: [100, 200], data: SCREENSHOT } } },
      { type: 'put', content: { tensor: { dtype: '>i2', shape: [300, 1024], stateDigest: sha256(PUT_STATE) } } },
    ],
    reward: -2.5,
  });
}

/** The own steps of a branch at step 3. */
export function branchSteps(): Step[] {
  const env = { name: 'env', data: utf8('branch 4'), digest: sha256(utf8('branch 4')) };
  return [
    create(StepSchema, { stepNumber: 4n, actions: [{ type: 'text', content: { text: 'branch' } }], states: [env] }),
    create(StepSchema, { stepNumber: 5n, reward: 1.5, truncated: true }),
  ];
}

/** The own step of a branch of that branch, at its step 4. */
export function leafSteps(): Step[] {
  return [create(StepSchema, { stepNumber: 5n, reward: 2, states: [{ name: 'env', data: utf8('leaf 5') }] })];
}

function utf8(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

/** How a read returns a step: states by digest and size (RD3, FM4), and without the fields that the server sets. */
export function asRead(sent: Step): Step {
  const step = withoutServerFields(sent);
  for (const state of step.states) {
    const data = state.data ?? PUT_STATE;
    state.name = state.name === '' ? 'env' : state.name;
    state.digest = sha256(data);
    state.size = BigInt(data.length);
    delete state.data;
  }
  for (const { content } of [...step.actions, ...step.observations]) {
    if (content?.stateDigest !== undefined) content.size = BigInt(PUT_STATE.length);
    const holder = content?.tensor ?? content;
    if (holder?.data === undefined || holder.data.length < 16 * 1024) continue;
    holder.stateDigest = sha256(holder.data);
    if (holder === content) content.size = BigInt(holder.data.length);
    delete holder.data;
  }
  return step;
}

export function withoutServerFields(read: Step): Step {
  const step = clone(StepSchema, read);
  delete step.commitTime;
  step.writerEpoch = 0n;
  step.rewardSum = 0;
  for (const { content } of [...step.actions, ...step.observations]) {
    const holder = content?.tensor ?? content;
    if (holder?.data !== undefined) holder.data = new Uint8Array(holder.data); // some transports return a Buffer
  }
  return step;
}
