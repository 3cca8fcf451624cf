import { create, toBinary } from '@bufbuild/protobuf';
import { AppendStepsRequestSchema } from '../gen/es/anabranch/v1/trajectory_service_pb.js';

/**
 * Encoded append frames, made by patching a template: what a load generator spends on a message is a copy of its bytes, so that what is measured is
 * the server. A step is one of CartPole, with its state (about 430 bytes encoded), or the same without a state.
 */
export class FrameTemplate {
  private readonly bytes: Buffer;
  private readonly numbers: number[] = [];
  private readonly nonces: number[] = [];

  constructor(stepsPerFrame: number, withState: boolean) {
    const steps = Array.from({ length: stepsPerFrame }, () => ({
      stepNumber: NUMBER_MARK,
      actions: [{ type: 'discrete', content: { json: '1' } }],
      observations: [
        { type: 'box', content: { json: '[0.027395540848374367,-0.006112155970185995,0.03585979342460632,0.019736802205443382]' } },
      ],
      reward: 1,
      metrics: { tick: 1 },
      states: withState ? [{ data: STATE, mediaType: 'application/json' }] : [],
    }));
    this.bytes = Buffer.from(toBinary(AppendStepsRequestSchema, create(AppendStepsRequestSchema, { steps })));
    for (let at = this.bytes.indexOf(NUMBER_BYTES); at !== -1; at = this.bytes.indexOf(NUMBER_BYTES, at + 1)) this.numbers.push(at);
    for (let at = this.bytes.indexOf(NONCE_MARK); at !== -1; at = this.bytes.indexOf(NONCE_MARK, at + 1)) this.nonces.push(at);
  }

  get size(): number {
    return this.bytes.length;
  }

  /** The frame whose first step has this number; `stream` makes its states unlike those of other streams. */
  frame(stream: number, firstStep: number): Buffer {
    const frame = Buffer.from(this.bytes);
    for (let i = 0; i < this.numbers.length; i += 1) writeWideVarint(frame, this.numbers[i]!, firstStep + i);
    for (let i = 0; i < this.nonces.length; i += 1) {
      frame.write(`${String(stream).padStart(4, '0')}${String(firstStep + i).padStart(12, '0')}`, this.nonces[i]!, 'latin1');
    }
    return frame;
  }
}

/** Takes five bytes as a varint, so that any smaller number fits in its place. */
const NUMBER_MARK = (1n << 34n) + 0x2a55aan;
const NUMBER_BYTES = varint(NUMBER_MARK);
const NONCE_MARK = Buffer.from('NONCE-16-LETTERS');
const STATE = Buffer.from(
  JSON.stringify({
    state: ['0x3f9c0d9d5a0b1c2d', '0xbf7909a1b2c3d4e5', '0x3fa25c2f6a7b8c9d', '0x3f9435d8e9fa0b1c'],
    generator: [2463534242, 1812433253, 2147483647, 305419896],
    steps: 200,
    nonce: NONCE_MARK.toString(),
  }),
);

function varint(value: bigint): Buffer {
  const bytes: number[] = [];
  for (let rest = value; ; rest >>= 7n) {
    if (rest < 128n) return Buffer.from([...bytes, Number(rest)]);
    bytes.push(Number(rest & 127n) | 128);
  }
}

function writeWideVarint(target: Buffer, at: number, value: number): void {
  let rest = value;
  for (let i = 0; i < 4; i += 1) {
    target[at + i] = (rest % 128) | 128;
    rest = Math.floor(rest / 128);
  }
  target[at + 4] = rest;
}
