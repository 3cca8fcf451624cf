import { create, type DescField, type DescMessage, type Message, ScalarType, toBinary } from '@bufbuild/protobuf';
import { type ReflectMessage, reflect } from '@bufbuild/protobuf/reflect';
import { describe, expect, it } from 'vitest';
import {
  EnvironmentSchema,
  GroupSchema,
  RolloutSchema,
  TaskSchema,
  ValidatorSchema,
} from '../../gen/es/anabranch/v1/rollout_pb.js';
import { ExperimentSchema, RunSchema, StageSchema } from '../../gen/es/anabranch/v1/run_pb.js';
import { TrajectorySchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { sizerOf } from '../../src/service/answer/message.ts';

const SCHEMAS: DescMessage[] = [
  EnvironmentSchema,
  ExperimentSchema,
  GroupSchema,
  RolloutSchema,
  RunSchema,
  StageSchema,
  TaskSchema,
  TrajectorySchema,
  ValidatorSchema,
];

describe('RD3: the estimated size of a message', () => {
  it.each(SCHEMAS)('is at least the size of its encoding, with every field at its longest: $name', (schema) => {
    const message = filled(schema);
    const bytes = toBinary(schema, message).length;
    const counted = sizerOf(schema)(message);
    expect(counted).toBeGreaterThanOrEqual(bytes);
    expect(counted, 'so that pages are not much shorter than they could be').toBeLessThan(3 * bytes);
  });

  it('is small for an empty message', () => {
    expect(sizerOf(EnvironmentSchema)(create(EnvironmentSchema))).toBeLessThan(512);
  });
});

function filled(schema: DescMessage): Message {
  const message = create(schema);
  const fields = reflect(schema, message);
  for (const field of schema.fields) setLongest(fields, field);
  return message;
}

function setLongest(message: ReflectMessage, field: DescField): void {
  const value = longest(field);
  switch (field.fieldKind) {
    case 'list':
      for (let i = 0; i < 3; i += 1) message.get(field).add(value);
      break;
    case 'map':
      for (const key of ['a', 'ü'.repeat(60)]) message.get(field).set(key, value);
      break;
    default:
      message.set(field, value);
  }
}

function longest({ message, scalar, enum: listed }: DescField): unknown {
  if (message !== undefined) return reflect(message, filled(message));
  if (listed !== undefined) return listed.values.at(-1)!.number;
  switch (scalar) {
    case ScalarType.STRING:
      return '木'.repeat(50);
    case ScalarType.BYTES:
      return new Uint8Array(50);
    case ScalarType.BOOL:
      return true;
    case ScalarType.INT64:
      return -1n;
    case ScalarType.INT32:
      return -1;
    default:
      return 0.5;
  }
}
