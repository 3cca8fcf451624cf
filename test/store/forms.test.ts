import { type DescMessage, getOption, hasOption } from '@bufbuild/protobuf';
import { field as rules } from '@bufbuild/protovalidate/gen/buf/validate/validate_pb.js';
import { expect, it } from 'vitest';
import {
  NewRolloutSchema,
  NewValidationSchema,
  TaskUpsertSchema,
  UpsertEnvironmentRequestSchema,
  UpsertGroupRequestSchema,
  ValidatorUpsertSchema,
} from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import {
  CreateExperimentRequestSchema,
  CreateRunRequestSchema,
  UpdateRunRequestSchema,
  UpdateStageRequestSchema,
} from '../../gen/es/anabranch/v1/run_service_pb.js';
import { CreateTrajectoryRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { VALIDATIONS } from '../../src/store/sql/kit/tables/attempts.ts';
import { GROUPS, ROLLOUTS, TASKS, VALIDATORS } from '../../src/store/sql/kit/tables/rollouts.ts';
import { ENVIRONMENTS, EXPERIMENTS, RUNS, STAGES } from '../../src/store/sql/kit/tables/runs.ts';
import type { Table } from '../../src/store/sql/kit/tables/table.ts';
import { TRAJECTORIES } from '../../src/store/sql/kit/tables/trajectories.ts';

/** Requests that set columns of the same names. */
const SET: readonly (readonly [DescMessage, Table])[] = [
  [CreateExperimentRequestSchema, EXPERIMENTS],
  [CreateRunRequestSchema, RUNS],
  [UpdateRunRequestSchema, RUNS],
  [UpdateStageRequestSchema, STAGES],
  [NewRolloutSchema, ROLLOUTS],
  [UpsertGroupRequestSchema, GROUPS],
  [UpsertEnvironmentRequestSchema, ENVIRONMENTS],
  [TaskUpsertSchema, TASKS],
  [ValidatorUpsertSchema, VALIDATORS],
  [NewValidationSchema, VALIDATIONS],
  [CreateTrajectoryRequestSchema, TRAJECTORIES],
];

/** Stored after it was merged with other configs, so it may be larger. */
const MERGED = new Set(['runs.config_json']);

it('V6: texts and numbers of columns have the bounds of the requests that set them', () => {
  let compared = 0;
  for (const [message, { name: table, columns }] of SET) {
    for (const field of message.fields) {
      const column = columns[field.name];
      const place = `${table}.${field.name}`;
      if (field.fieldKind !== 'scalar' || column?.form === undefined || MERGED.has(place)) continue;
      if (!hasOption(field, rules)) continue;
      const { type } = getOption(field, rules);
      const { form } = column;
      if (type.case === 'string' && form.kind === 'text') {
        expect([place, form.most]).toEqual([place, Number(type.value.maxBytes)]);
      } else if ((type.case === 'int64' || type.case === 'int32') && form.kind === 'integer') {
        const { greaterThan, lessThan } = type.value;
        expect([place, form.least]).toEqual([place, BigInt(greaterThan.value ?? -1)]);
        if (lessThan.value !== undefined) expect([place, form.most]).toEqual([place, BigInt(lessThan.value)]);
      } else continue;
      compared += 1;
    }
  }
  expect(compared).toBeGreaterThan(40);
});
