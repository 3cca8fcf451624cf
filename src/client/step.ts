import type { JsonValue, MessageInitShape } from '@bufbuild/protobuf';
import type { Timestamp } from '@bufbuild/protobuf/wkt';
import type { ActionSchema, ObservationSchema, StepStateSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';

/** What the agent did: `{ type: 'tool_call', name: 'move', callId: '1', content: { json: '{"x":1}' } }`. */
export type ActionInit = MessageInitShape<typeof ActionSchema>;

/** What came back: `{ type: 'text', content: { text: 'ok' } }`. */
export type ObservationInit = MessageInitShape<typeof ObservationSchema>;

/** A state of a step: its bytes, or bytes with a media type, or the digest of a state put before. */
export type StateInit = Uint8Array | Omit<MessageInitShape<typeof StepStateSchema>, '$typeName' | 'name' | 'size'>;

/**
 * One step, without its number: the writer gives it the next one. Everything is optional.
 *
 *     { actions: [{ type: 'key', content: { text: 'left' } }], reward: 1, states: { env: bytes } }
 *
 * A `Step` read from a server may be given as it is.
 */
export interface StepInit {
  /** If given, it must be the number that the writer is about to give; a program's own check. */
  readonly stepNumber?: bigint | undefined;
  readonly actions?: readonly ActionInit[] | undefined;
  readonly observations?: readonly ObservationInit[] | undefined;
  /** Missing is not 0; NaN and infinities are kept. */
  readonly reward?: number | undefined;
  readonly terminated?: boolean | undefined;
  readonly truncated?: boolean | undefined;
  /** The environment's info; stored as `JSON.stringify(info)`. Give `infoJson` instead for exact text. */
  readonly info?: JsonValue | undefined;
  readonly infoJson?: string | undefined;
  /** Anything else; stored as `JSON.stringify(metadata)`. Give `metadataJson` instead for exact text. */
  readonly metadata?: JsonValue | undefined;
  readonly metadataJson?: string | undefined;
  readonly metrics?: Readonly<Record<string, number>> | undefined;
  readonly startTime?: Date | Timestamp | undefined;
  readonly endTime?: Date | Timestamp | undefined;
  /** By name: `{ env: bytes, agent: { data, mediaType: 'application/json' } }`; or as a list, as in the proto. */
  readonly states?:
    | Readonly<Record<string, StateInit>>
    | readonly MessageInitShape<typeof StepStateSchema>[]
    | undefined;
}
