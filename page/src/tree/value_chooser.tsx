import { useState } from 'preact/hooks';
import { isPlotted, labelOf, type PlottedValue, SUM } from './value.ts';

interface Props {
  readonly value: PlottedValue;
  readonly offered: readonly PlottedValue[];
  readonly onChange: (value: PlottedValue) => void;
}

const OTHER = 'other';

/** Chooses the plotted value: one that is offered, or any number in an observation, action, info or state. */
export function ValueChooser({ value, offered, onChange }: Props) {
  const [isTyping, setTyping] = useState(false);
  const all = [...new Set([SUM, 'reward', ...offered, value])];
  const choose = (wanted: string) => {
    if (wanted === OTHER) setTyping(true);
    else onChange(wanted);
  };
  if (isTyping) return <TypedValue onChange={onChange} onEnd={() => setTyping(false)} />;
  return (
    <label class="chooser">
      <span class="only-read">plotted value</span>
      <select value={value} onChange={(event) => choose(event.currentTarget.value)}>
        {all.map((each) => (
          <option key={each} value={each}>
            {labelOf(each)}
          </option>
        ))}
        <option value={OTHER}>Another value …</option>
      </select>
    </label>
  );
}

/** A field for a value. Enter plots it, Escape closes the field. */
function TypedValue({
  onChange,
  onEnd,
}: {
  readonly onChange: (value: PlottedValue) => void;
  readonly onEnd: () => void;
}) {
  const [typed, setTyped] = useState('state:env:/');
  const submit = (event: Event) => {
    event.preventDefault();
    if (!isPlotted(typed)) return;
    onChange(typed);
    onEnd();
  };
  return (
    <form class="chooser" onSubmit={submit}>
      <label>
        <span class="only-read">value to plot</span>
        <input
          value={typed}
          aria-describedby="value-format"
          aria-invalid={!isPlotted(typed)}
          ref={(input) => input?.focus()}
          onInput={(event) => setTyped(event.currentTarget.value)}
          onKeyDown={(event) => event.key === 'Escape' && onEnd()}
        />
      </label>
      <p class="hint" id="value-format">
        observation:, action:, info: or state:NAME:, and a JSON Pointer
      </p>
    </form>
  );
}
