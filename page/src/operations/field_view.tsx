import { useId } from 'preact/hooks';
import type { Field } from './operation.ts';

interface FieldViewProps {
  readonly field: Field;
  readonly value: string;
  readonly onChange: (value: string) => void;
}

export function FieldView({ field: { label, kind, optional = false }, value, onChange }: FieldViewProps) {
  const id = useId();
  if (kind === 'check') {
    return (
      <label class="field check">
        <input
          type="checkbox"
          checked={value !== ''}
          onChange={(event) => onChange(event.currentTarget.checked ? 'yes' : '')}
        />{' '}
        {label}
      </label>
    );
  }
  const common = { id, value };
  return (
    <div class="field">
      <label class="dim" for={id}>
        {label}
      </label>
      {kind === 'lines' ? (
        <textarea {...common} rows={4} onInput={(event) => onChange(event.currentTarget.value)} />
      ) : kind === 'text' ? (
        <input {...common} required={!optional} onInput={(event) => onChange(event.currentTarget.value)} />
      ) : (
        <select {...common} required onChange={(event) => onChange(event.currentTarget.value)}>
          <option value="">Choose</option>
          {kind.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      )}
    </div>
  );
}
