<?php

declare(strict_types=1);

namespace Howfar;

/** Draws what a statement's parameters and a store's keys are to be. What a script may ask for is checked before it comes here. */
final class Values
{
    private const KEY_DIGITS = 12;

    /** @var array<string, list<int|string>> what each statement's parameters were last */
    private array $last = [];

    /** @return list<int|string> */
    public function ofStatement(array $statement): array
    {
        $this->last[$statement['name']] = [];
        foreach ($statement['parameters'] as $values) {
            $this->last[$statement['name']][] = $this->one($values); // a later one may repeat an earlier one
        }

        return $this->last[$statement['name']];
    }

    /** @return list<string> */
    public function keys(array $keys, int $count): array
    {
        $drawn = [];
        while (count($drawn) < $count) {
            $number = (string) mt_rand(1, $keys['keys']);
            $drawn[] = $keys['key_prefix'] . str_pad($number, self::KEY_DIGITS, '0', STR_PAD_LEFT);
        }

        return $drawn;
    }

    private function one(array $values): int|string
    {
        return match ($values['kind']) {
            'integer' => mt_rand($values['low'], $values['high']),
            'constant' => $values['value'],
            'same' => $this->last[$values['statement']][$values['index']]
                ?? throw new \RuntimeException("statement {$values['statement']} was not run before its value was wanted"),
            'text' => self::text($values['length'], $values['alphabet']),
            default => throw new \RuntimeException("values of kind {$values['kind']} are not known"),
        };
    }

    private static function text(int $length, string $alphabet): string
    {
        $letters = $alphabet === 'digits' ? '0123456789' : 'abcdefghijklmnopqrstuvwxyz';
        $text = '';
        for ($i = 0; $i < $length; $i++) {
            $text .= $letters[mt_rand(0, strlen($letters) - 1)];
        }

        return $text;
    }
}
