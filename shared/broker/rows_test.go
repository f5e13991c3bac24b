package broker_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/broker"
	"github.com/dormouse-mcp/dormouse/shared/commontest"
)

// rows maps the acceptance rows of sign-in (A) and of quotas (Q) to the tests that check
// them, in this package or in the folder before the colon.
func rows() map[string][]string {
	const (
		endpoints = "functions/wiring/endpoints:"
		clients   = "infra/proof/clients:"
		quotas    = "shared/quota:"
		tokens    = "shared/oauth:"
		upstream  = "shared/upstream:"
	)
	return map[string][]string{
		"A-1": {endpoints + "TestWithoutATokenEveryDoorSaysWhereToGetOne"},
		"A-2": {endpoints + "TestMetadataOfAServerIsWhereClientsLookForIt"},
		"A-3": {endpoints + "TestThereIsNoOtherMetadata"},
		"A-4": {endpoints + "TestThereIsNoOtherMetadata"},
		"A-5": {"TestA5MetadataNamesThePublicURL", "TestAForeignHostIsRefusedOnLoopback"},
		"A-6": {"TestA6PagesOfOtherOriginsMayUseOnlyWhatIsForClients"},
		"A-7": {endpoints + "TestGoSDKSignsInCallsAndStepsUp", clients + "TestRealClientsSignIn", clients + "TestMCPRemoteSignsIn", clients + "TestInspectorSignsIn"},
		"A-8": {
			endpoints + "TestGoSDKSignsInCallsAndStepsUp", clients + "TestRealClientsSignIn", clients + "TestRealClientsWithADocumentSignInAgainAfterARevocation",
			clients + "TestMCPRemoteSignsIn", clients + "TestInspectorSignsIn",
		},
		"A-9":  {endpoints + "TestTokenIsOneAuthorizationHeader"},
		"A-10": {"TestA10TokenOfAnotherServerIsRefused", endpoints + "TestTokenOfAnotherServerOpensNoDoor", endpoints + "TestTokenOfAnotherAddressOpensNoGroup"},
		"A-11": {tokens + "TestIssuerIsComparedByteForByte"},
		"A-12": {tokens + "TestTimesOfATokenHoldWithinAMinute", "TestTokensExpireAfterAnHour"},
		"A-13": {tokens + "TestForgedTokensAreRefusedWithoutAFetch"},
		"A-14": {tokens + "TestTokensOfOtherKindsAreRefused"},
		"A-15": {tokens + "TestKeyThatIsNotKnownIsFetchedOnce"},
		"A-16": {tokens + "TestKeysAreUsedForADayWhileTheyCannotBeFetched"},
		"A-17": {tokens + "TestKeySetsAreBounded"},
		"A-18": {
			"TestA18NoTokenAndNoCodeIsLogged", endpoints + "TestTokenIsInNoLogLine", endpoints + "TestTokenIsInNoFrameOfABox", endpoints + "TestTokenIsInNoFrameOfABoxOnDynamoDB",
			endpoints + "TestClaimsReachANativeServer", "infra/dormouse:TestE2ETokenIsNowhere",
		},
		"A-19": {endpoints + "TestATokenCostsOneReadInEachInstance", endpoints + "TestATokenOfAGroupCostsWhatNoAccessControlCosts"},
		"A-20": {"TestA20ARevokedGrantIsRefusedEverywhere", "TestA20ATenantMayHaveAnyName", endpoints + "TestARevokedGrantEndsTicketsAndConnections"},
		"A-21": {endpoints + "TestSessionGoesOnWithTheNextTokenOfItsPrincipalOnly"},
		"A-22": {tokens + "TestPrincipalsOfTwoIssuersAreTwo"},
		"A-23": {endpoints + "TestACallWithoutItsScopeIsRefusedAsTheTransportCan", endpoints + "TestGoSDKSignsInCallsAndStepsUp", clients + "TestRealClientsStepUp"},
		"A-24": {endpoints + "TestACallWithoutItsScopeIsRefusedAsTheTransportCan"},
		"A-25": {"TestA25ClaimsThatAreTooLargeAreRefusedAtSignIn", endpoints + "TestClaimsReachANativeServer"},
		"A-26": {endpoints + "TestKeysGoOnBesideTokens"},
		"A-27": {endpoints + "TestClaimsReachANativeServer", endpoints + "TestTicketOfATokenOpensAWebSocket", tokens + "TestRememberedTokenEndsInTime"},
		"A-28": {"infra/stack:TestColdStarts"}, // make bench-cold
		"A-29": {"TestA29TheLargestTokenIsShort"},
		"A-30": {"TestA30ACodeThatComesTwiceEndsItsGrant", "TestA30OfManyThatRedeemACodeOneWinsAtMost"},
		"A-31": {"TestA31WithoutProofOfPossessionThereAreNoTokens"},
		"A-32": {"TestA32ACodeIsBoundToClientAddressAndResource"},
		"A-33": {"TestA33AnOldCodeIsRefused"},
		"A-34": {"TestA34TheIssuerIsInEveryRedirect", "TestA34AnswersOfTheProviderThatAreNotGood"},
		"A-35": {
			"TestA35RefreshTokensRotate", "TestA35ATokenIsGoodUntilItsSuccessorWasUsed", "TestA35ATokenThatComesLateEndsNobodysGrant", "TestA35AnOlderRecordGoesOn",
			"TestA35UnknownAndWrongTokensLookAlike", "TestManyRefreshesAtOnceGiveOneSuccessor",
		},
		"A-36": {"TestA36RedirectURIs", "TestA36AProgramSignsInWithItsOwnScheme", "TestA36ARegistrationKeepsWhatCanBeUsed", "TestLoopbackPortsDoNotCount"},
		"A-37": {"TestA37NoRequestForOddIDs", "TestA37OnlyPublicAddressesAreDialled", "TestA37RedirectsAreNotFollowed"},
		"A-38": {"TestA38DocumentsThatAreNotGood", "TestA38DocumentsOfRealClients", "TestA38AChangedDocumentNeedsANewConsent", "TestA38ADocumentNamesWhatCannotBeUsed"},
		"A-39": {"TestA39AHundredThousandRegistrationsStoreNothing", "TestA39ARegistrationIsGoodForNinetyDays", "TestA49WaysToAuthenticate", "infra/stack:TestEveryWayInIsThrottled", "infra/local:TestAnAddressMayAskForThePagesOfSignInTenTimesASecond"},
		"A-40": {"TestA40ConsentComesFirst"},
		"A-41": {"TestA41TheCallbackIsForTheBrowserThatBegan"},
		"A-42": {"TestA42TheConsentPageCannotBeForged"},
		"A-43": {"TestA43Resources", "TestA43TheAddressOfSeveralServersIsAResource"},
		"A-44": {"TestA44TheSecretCanBeReplaced"},
		"A-45": {"TestA45KeysAreExchangedForTokens"},
		"A-46": {"TestA46AssertionsAreExchangedOnce"},
		"A-47": {"infra/proof/conformance:TestAuthorizationScenariosPass"},
		"A-48": {"TestA48UnknownScopesAreDropped"},
		"A-49": {"TestA49WaysToAuthenticate"},
		"A-50": {"TestA50ACrashLeavesNoGrantWithoutAHolder"},
		"A-51": {"TestA51UsersSignInAtAProvider", "TestA51UsersSignInAtGitHub", clients + "TestRealClientsSignIn"},
		"A-52": {upstream + "TestA52MissingTokenAsksTheUserAndWakesNoBox", upstream + "TestA52AModernClientIsAskedInARound", upstream + "TestA52TheClientHearsThatItsUserHasConnected"},
		"A-53": {upstream + "TestA53PageOpenedBySomebodyElseStoresNothing", upstream + "TestA53AnswerOfTheThirdPartyBelongsToTheBrowserThatBegan"},
		"A-54": {upstream + "TestA54ATokenIsForItsPrincipalOnly", "shared/box:TestA54AProcessHasTheTokenOfItsPrincipalOnly", "shared/catalog:TestA54NoOtherPrincipalCanGetAtAToken", "infra/dormouse:TestE2EUpstreamEachPrincipalHasItsOwnToken"},
		"A-55": {upstream + "TestA55TenCallsWithAnExpiredTokenRefreshOnce", upstream + "TestA55ARefusedRefreshAsksTheUserOnce"},
		"A-56": {
			"TestA56OddTextsAreNoFaultOfTheStore", "FuzzA56Authorize", "FuzzA56Consent", "FuzzA56Callback", "FuzzA56Login", "FuzzA56Token", "FuzzA56Assertion", "FuzzA56Register",
			"FuzzA56Revoke", "FuzzA56Document", "FuzzA56Metadata", endpoints + "FuzzA56ResourceMetadata", tokens + "FuzzSettings", "shared/allow:FuzzEmail",
			tokens + "FuzzToken", tokens + "FuzzClaims", tokens + "FuzzKeys", tokens + "FuzzMetadata", tokens + "FuzzAudience", upstream + "FuzzA56TokenAnswer", upstream + "FuzzA56Providers",
			upstream + "FuzzA56ConnectPage", upstream + "FuzzA56ConnectForm", upstream + "FuzzA56ConnectAnswer",
		},

		"Q-1":  {quotas + "TestWithoutLimitsThereIsNoLimiter", endpoints + "TestNoLimitsCostNothing"},
		"Q-2":  {quotas + "TestTheTwentyFirstCallInASecondIsRefused", endpoints + "TestARefusedCallIsAToolErrorOnEveryTransport"},
		"Q-3":  {quotas + "TestEightProcessesKeepOneLimit", quotas + "TestTokensThatInstancesHoldAreNotBeyondTheBurst", quotas + "TestLimitsHoldOnTheRealStores"},
		"Q-4":  {quotas + "TestARateCostsFewWrites", quotas + "TestARefusedCallCostsTheStoreNothing"},
		"Q-5":  {endpoints + "TestACallOfAStatelessClientIsCountedOnce", endpoints + "TestABatchIsAnsweredRequestByRequest", endpoints + "TestASocketGetsToolErrorsAndIsClosedInAFlood"},
		"Q-6":  {quotas + "TestTheNarrowestLimitIsNamedAndARefusalTakesFromNone", quotas + "TestARefusalByTheLastLimitGivesBackWhatTheOthersGave"},
		"Q-7":  {endpoints + "TestGoSDKGoesOnAfterARefusal", clients + "TestRealClientsGoOnAfterARefusal"},
		"Q-8":  {endpoints + "TestAFloodGetsAStatusAndCostsLittle", endpoints + "TestARequestOfAFloodAllocatesAThirdOfAnEcho", quotas + "TestTenTimesTheRateIsAFlood", quotas + "TestAFloodOfOneCallerIsNotThatOfAnother", quotas + "TestCallersWhoShareALimitAreNoFlood"},
		"Q-9":  {endpoints + "TestATenantAtItsLimitCostsAnotherNothing"}, // and make bench PART=tenants
		"Q-10": {quotas + "TestThreeCallsDoNotRunWhereTwoMay", quotas + "TestACallWhoseClientLeavesIsGivenBack", quotas + "TestALongCallKeepsItsPlace"},
		"Q-11": {quotas + "TestACapOfMoneyStopsWithinACentForEachInstance", quotas + "TestACapOfAPrincipalStopsItWithinACentForEachInstance", endpoints + "TestACapOfAPrincipalIsAToolError", endpoints + "TestAtTheCapResultsCanStillBeRead"},
		"Q-12": {endpoints + "TestTheAccountAgreesWithTheBill", "infra/dormouse:TestE2EAccountOfATenantAgreesWithTheBill", quotas + "TestAnInstanceThatEndsWritesDownWhatIsPending"},
		"Q-13": {quotas + "TestAClockThatIsWrongDoesNotRaiseALimit"},
		"Q-14": {quotas + "TestALimitHoldsHalfwayWhileTheStoreIsDown", quotas + "TestACapRefusesWorkAfterTenMinutesWithoutAFigure", quotas + "TestUseIsNeitherLostNorCountedTwiceInTrouble"},
		"Q-15": {quotas + "TestAChangedLimitHoldsWithinThirtySeconds"},
		"Q-16": {quotas + "TestANativeServerCannotReachTheRowsOfLimits"},
	}
}

// threats maps the threats of an authorization server to rows.
func threats() map[string][]string {
	return map[string][]string{
		"confused deputy": {"A-40"}, "open redirect": {"A-36"}, "code injection": {"A-30", "A-31", "A-32", "A-33"}, "login CSRF": {"A-41"}, "mix-up": {"A-34"},
		"clickjacking": {"A-42"}, "requests to inner hosts": {"A-37"}, "changed documents": {"A-38"}, "loopback clients": {"A-40"}, "links to the connect page": {"A-53"}, "floods": {"A-39"},
		"stolen refresh tokens": {"A-35"}, "tokens for another server": {"A-10"}, "tokens passed on": {"A-18"}, "forged signatures": {"A-13"},
		"key sets": {"A-15", "A-16", "A-17"}, "ID tokens": {"A-14"}, "a sealed secret leaks": {"A-44"}, "timing": {"A-35"},
	}
}

// reasons says why rows have no test on each driver of the store.
func reasons() map[string]string {
	const (
		counted = "its tests count that nothing reaches the store"
		pure    = "tokens of a provider are verified with keys in memory: shared/oauth reads no store for them"
	)
	return map[string]string{
		"A-1": counted, "A-2": counted, "A-3": counted, "A-4": counted, "A-9": counted,
		"A-11": pure, "A-13": pure, "A-14": pure, "A-15": pure, "A-16": pure, "A-17": pure, "A-22": pure,
		"A-28": "the program that starts is the one for DynamoDB, and SQLite is not in it",
		"A-47": "the suite meets a program, which its test runs with each driver",
	}
}

func TestNoRowIsLeftOut(t *testing.T) {
	all := rows()
	for kind, last := range map[string]int{"A": 56, "Q": 16} {
		for n := 1; n <= last; n++ {
			if row := fmt.Sprint(kind, "-", n); len(all[row]) == 0 {
				t.Errorf("%s has no test", row)
			}
		}
	}
}

// Row A-56: make fuzz runs every target of this package.
func TestEveryPathHasAFuzzTarget(t *testing.T) {
	source, err := os.ReadFile("fuzz_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range broker.Paths() {
		if !strings.Contains(string(source), `"`+path+`"`) {
			t.Errorf("nothing fuzzes %s", path)
		}
	}
}

func TestEveryRowAndEveryThreatHasATest(t *testing.T) {
	commontest.RowsHaveTests(t, "../..", "shared/broker", rows())
	commontest.RowsRunOnEachDriver(t, "../..", "shared/broker", rows(), reasons())
	for _, threat := range slices.Sorted(maps.Keys(threats())) {
		for _, row := range threats()[threat] {
			if len(rows()[row]) == 0 {
				t.Errorf("%s: row %s has no test", threat, row)
			}
		}
	}
}
